package deploy

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"triune.dev/tests/deploy/engine"
)

// secrets lists the readers of private keys and of kubeconfigs, which contain keys. The job
// that makes them is not listed.
var secrets = map[string][]string{
	"aggregator.key":                {"aggregator"},
	"core.key":                      {"core"},
	"extensions.key":                {"extensions"},
	"front-proxy/aggregator.key":    {"aggregator"},
	"front-proxy/core.key":          {"core"},
	"front-proxy/extensions.key":    {"extensions"},
	"etcd/aggregator.key":           {"aggregator"},
	"etcd/core.key":                 {"core"},
	"etcd/extensions.key":           {"extensions"},
	"etcd/root.key":                 {"etcd-0", "etcd-1", "etcd-2", "etcd-roles"},
	"etcd/server.key":               {"etcd-0", "etcd-1", "etcd-2"},
	"nats/aggregator.key":           {"aggregator"},
	"nats/core.key":                 {"core"},
	"nats/extensions.key":           {"extensions"},
	"nats/server.key":               {"nats-0", "nats-1", "nats-2"},
	"prometheus.key":                {"prometheus"},
	"sa.key":                        {"core", "kube-controller-manager"},
	"ca.key":                        {"kube-controller-manager"}, // to sign certificates
	"controller-manager.kubeconfig": {"kube-controller-manager"},
	"scheduler.kubeconfig":          {"kube-scheduler"},
	"nodes.kubeconfig":              {"kwok", "nodes"},
}

// isSecret reports whether a file is secret.
func isSecret(name string) bool {
	return strings.HasSuffix(name, ".key") || strings.HasSuffix(name, ".kubeconfig")
}

// composeService has the tested fields of a service of docker-compose.yml.
type composeService struct {
	User        string
	ReadOnly    bool     `json:"read_only"`
	CapDrop     []string `json:"cap_drop"`
	SecurityOpt []string `json:"security_opt"`
	StopGrace   string   `json:"stop_grace_period"`
	Ports       []string
	Command     []string
	Entrypoint  []string
	Environment map[string]string
	Healthcheck struct{ Test []string }
	Restart     string
	DependsOn   map[string]struct{ Condition string } `json:"depends_on"`
	Volumes     []string
}

func composeServices(t *testing.T) map[string]composeService {
	t.Helper()
	data, err := os.ReadFile(path(t, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Services map[string]composeService }
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Services) < 10 {
		t.Fatalf("docker-compose.yml has only %d services", len(file.Services))
	}
	return file.Services
}

// TestComposeJobsAreWaitedFor checks that another service waits for every service that
// exits. Otherwise compose's up --wait takes its end for a failure, even if it succeeds.
func TestComposeJobsAreWaitedFor(t *testing.T) {
	services := composeServices(t)
	awaited := map[string]bool{}
	for _, s := range services {
		for name, dependency := range s.DependsOn {
			if dependency.Condition == "service_completed_successfully" {
				awaited[name] = true
			}
		}
	}
	for name, s := range services {
		if ends := s.Restart == "" || s.Restart == "no"; ends != awaited[name] {
			t.Errorf("%s: restart is %q, and somebody waits for its end: %v", name, s.Restart, awaited[name])
		}
	}
}

// TestComposeIsConfined checks that only the job that sets the owners of volumes is root,
// that services write only to volumes, that no port is reachable from other machines, that
// data is in named volumes, and that everything stops within ten seconds.
func TestComposeIsConfined(t *testing.T) {
	for name, s := range composeServices(t) {
		if s.User != "65532:65532" && name != "pki" {
			t.Errorf("%s: user %q", name, s.User)
		}
		if !s.ReadOnly && name != "pki" || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s: read_only %v, cap_drop %v", name, s.ReadOnly, s.CapDrop)
		}
		if !slices.Contains(s.SecurityOpt, "no-new-privileges:true") && name != "pki" {
			t.Errorf("%s: security_opt %v", name, s.SecurityOpt)
		}
		if s.StopGrace != "10s" && name != "pki" {
			t.Errorf("%s: stop_grace_period %q", name, s.StopGrace)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to other machines", name, port)
			}
		}
		for _, volume := range s.Volumes {
			if source, _, _ := strings.Cut(volume, ":"); strings.ContainsAny(source, "/$") && !strings.HasSuffix(volume, ":ro") && name != "pki" {
				t.Errorf("%s writes to %s, which is no volume", name, source)
			}
		}
	}
}

// mounted returns what a service mounts at a path: a volume, or a directory of the
// checkout.
func (s composeService) mounted(at string) (source string, writable bool) {
	for _, volume := range s.Volumes {
		if parts := strings.Split(volume, ":"); parts[1] == at {
			return parts[0], len(parts) == 2
		}
	}
	return "", false
}

// shares returns the files in each volume that the job pki fills.
func shares(t *testing.T, job composeService) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, argument := range job.Command {
		text, ok := strings.CutPrefix(argument, "--share=")
		if !ok {
			continue
		}
		dir, files, _ := strings.Cut(text, "=")
		volume, _ := job.mounted(dir)
		if volume == "" {
			t.Errorf("pki shares %s, where no volume is", dir)
		}
		all[volume] = strings.Split(files, ",")
	}
	return all
}

// TestComposeKeys checks that every service of docker-compose.yml can read exactly the
// files of the PKI that its command line and its configuration name.
func TestComposeKeys(t *testing.T) {
	services := composeServices(t)
	shared := shares(t, services["pki"])
	named := regexp.MustCompile(`/pki/([\w./-]+)`)
	readers := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s := services[name]
		if name == "pki" {
			continue
		}
		text := slices.Concat(s.Command, s.Entrypoint, s.Healthcheck.Test, slices.Collect(maps.Values(s.Environment)))
		for _, config := range []string{"/etc/nats", "/etc/prometheus"} {
			dir, _ := s.mounted(config)
			if dir == "" {
				continue
			}
			files, err := filepath.Glob(filepath.Join(path(t, dir), "*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%d files in %s: %v", len(files), dir, err)
			}
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text = append(text, string(data))
			}
		}
		want := []string{}
		for _, match := range named.FindAllStringSubmatch(strings.Join(text, "\n"), -1) {
			want = append(want, match[1])
		}
		slices.Sort(want)
		volume, writable := s.mounted("/pki")
		if writable || volume == "pki" {
			t.Errorf("%s mounts %s, writable: %v", name, volume, writable)
		}
		have := slices.Sorted(slices.Values(shared[volume]))
		if diff := cmp.Diff(slices.Compact(want), append([]string{}, have...)); diff != "" {
			t.Errorf("files of %s (-named +in its volume):\n%s", name, diff)
		}
		for _, file := range have {
			if isSecret(file) {
				readers[file] = append(readers[file], name)
			}
		}
	}
	if diff := cmp.Diff(secrets, readers); diff != "" {
		t.Errorf("who reads what (-wanted +docker-compose.yml):\n%s", diff)
	}
}

// checkKeys checks the files below /pki in the containers of an installation, and that no
// other user can read a secret.
func checkKeys(t *testing.T, p *engine.Project) {
	t.Helper()
	services := composeServices(t)
	shared := shares(t, services["pki"])
	checked := 0
	for _, name := range slices.Sorted(maps.Keys(services)) {
		ids, err := p.Containers(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "pki" || len(ids) == 0 { // its profile is off
			continue
		}
		out, err := engine.Docker(t.Context(), "cp", ids[0]+":/pki", "-")
		if err != nil {
			t.Fatal(err)
		}
		checked++
		have := []string{}
		for archive := tar.NewReader(strings.NewReader(out)); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			file := strings.TrimPrefix(header.Name, "pki/")
			if header.Typeflag != tar.TypeReg {
				continue
			}
			have = append(have, file)
			if mode := header.FileInfo().Mode().Perm(); isSecret(file) && (mode != 0o600 || header.Uid != 65532) {
				t.Errorf("%s: %s has mode %v and belongs to %d", name, file, mode, header.Uid)
			}
		}
		volume, _ := services[name].mounted("/pki")
		if diff := cmp.Diff(slices.Sorted(slices.Values(shared[volume])), slices.Sorted(slices.Values(have))); diff != "" {
			t.Errorf("files of %s (-shared +there):\n%s", name, diff)
		}
	}
	if checked < 6 {
		t.Errorf("only %d services were looked into", checked)
	}
}
