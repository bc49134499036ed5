package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/deploy/engine"
)

// again holds what is needed to start a container of an installation again, with other flags.
type again struct {
	container, project, image string
	flags, env                []string
}

func inspect(t *testing.T, container string) again {
	t.Helper()
	out, err := engine.Docker(t.Context(), "inspect", container)
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Config struct {
			Image           string
			Entrypoint, Cmd []string
			Env             []string
			Labels          map[string]string
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		t.Fatalf("%d containers: %v", len(all), err)
	}
	c := all[0].Config
	return again{container, c.Labels["com.docker.compose.project"], c.Image, append(c.Entrypoint[1:], c.Cmd...), c.Env}
}

// run starts the container with flags that replace those of the same name. It waits for the
// first error message, removes the container, and returns the message.
func (a again) run(t *testing.T, network string, flags ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := []string{"run", "--detach", "--read-only", "--tmpfs=/tmp", "--network=" + network, "--volume=" + a.project + "_pki:/pki:ro", a.image}
	for _, flag := range a.flags {
		name, _, _ := strings.Cut(flag, "=")
		if !replaced(flags, name) {
			args = append(args, flag)
		}
	}
	id, err := engine.Docker(ctx, append(args, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(id)
	defer func() { _, _ = engine.Docker(context.WithoutCancel(ctx), "rm", "--force", id) }()
	var line string
	eventually(t, time.Minute, func() error {
		logs, err := engine.Logs(ctx, id)
		if line = problem.FindString(logs); line != "" {
			return nil
		}
		return errors.Join(err, fmt.Errorf("no line of %s is an error", logs))
	})
	return line
}

// problem matches an error message.
var problem = regexp.MustCompile(`(?m)^(error: |E\d{4} ).*$`)

func replaced(flags []string, name string) bool {
	for _, flag := range flags {
		if strings.HasPrefix(flag, name+"=") {
			return true
		}
	}
	return false
}

// TestComposeBadInput checks that the first error message names what the user did wrong.
func TestComposeBadInput(t *testing.T) {
	full(t)
	p, _, _ := composeUp(t, nil, nil)
	ctx := t.Context()
	ids, err := p.Containers(ctx, "core")
	if err != nil {
		t.Fatal(err)
	}
	image, err := engine.Docker(ctx, "inspect", "--format={{.Config.Image}}", ids[0])
	if err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "ca.crt"), []byte("not a certificate"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a missing certificate":  {[]string{"--tls-cert-file=/gone.crt", "--tls-private-key-file=/gone.key"}, "--tls-cert-file=/gone.crt: no such file"},
		"a broken certificate":   {[]string{"--client-ca-file=/broken/ca.crt"}, "--client-ca-file=/broken/ca.crt"},
		"a directory for no one": {[]string{"pki", "--dir=/pki"}, "--dir=/pki"},
		"a directory of others":  {[]string{"pki", "--dir=/broken/pki"}, "--dir=/broken/pki"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := engine.Docker(ctx, append([]string{"run", "--rm", "--read-only", "--network=none", "--volume=" + broken + ":/broken:ro", strings.TrimSpace(image)}, test.args...)...)
			if err == nil {
				t.Fatal("no error")
			}
			if _, first, _ := strings.Cut(err.Error(), "\n"); !strings.HasPrefix(first, "error: ") || !strings.Contains(strings.SplitN(first, "\n", 2)[0], test.want) {
				t.Errorf("the first line is %q, want %q in it", first, test.want)
			}
		})
	}

	// The job that makes keys and sets the owners of volumes, with a read-only volume.
	for name, test := range map[string]struct{ flag, at string }{
		"an unwritable volume of data":        {"--give=/volumes/etcd-0", "/volumes/etcd-0"},
		"an unwritable volume of keys":        {"--share=/share/etcd=etcd/ca.crt,etcd/server.key", "/share/etcd"},
		"an unwritable volume of programs":    {"--install=/tools/triune", "/tools"},
		"an unwritable place for kubeconfigs": {"--kubeconfig=/host/admin.kubeconfig=admin@https://127.0.0.1:6443", "/host"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := engine.Docker(ctx, "run", "--rm", "--read-only", "--network=none", "--user=0:0", "--tmpfs=/pki",
				"--volume="+t.TempDir()+":"+test.at+":ro", strings.TrimSpace(image), "pki", "--dir=/pki", "--owner=65532:65532", test.flag)
			if err == nil {
				t.Fatal("no error")
			}
			_, text, _ := strings.Cut(err.Error(), "\n")
			first, _, _ := strings.Cut(text, "\n")
			flag, _, _ := strings.Cut(test.flag[len("--"):], "=")
			if !strings.HasPrefix(first, "error: ") || !strings.Contains(first, flag) || !strings.Contains(first, test.at) || !strings.Contains(first, "read-only file system") {
				t.Errorf("the first line is %q, want --%s, %s and the reason in it", first, flag, test.at)
			}
		})
	}
	// Programs that store data, with a volume that belongs to root.
	for _, service := range []string{"etcd-0", "nats-0"} {
		t.Run("an unwritable volume of "+service, func(t *testing.T) {
			ids, err := p.Containers(ctx, service)
			if err != nil {
				t.Fatal(err)
			}
			a := inspect(t, ids[0])
			args := []string{"run", "--detach", "--read-only", "--tmpfs=/tmp", "--user=65532:65532", "--network=none",
				"--volumes-from=" + a.container, "--volume=" + t.TempDir() + ":/data:ro"}
			for _, variable := range a.env {
				args = append(args, "--env="+variable)
			}
			id, err := engine.Docker(ctx, append(append(args, a.image), a.flags...)...)
			if err != nil {
				t.Fatal(err)
			}
			id = strings.TrimSpace(id)
			defer func() { _, _ = engine.Docker(context.WithoutCancel(ctx), "rm", "--force", id) }()
			// Programs of others, whose message may be on any line.
			eventually(t, time.Minute, func() error {
				logs, err := engine.Logs(ctx, id)
				named := slices.ContainsFunc(strings.Split(logs, "\n"), func(line string) bool {
					return strings.Contains(line, "/data") && (strings.Contains(line, "read-only file system") || strings.Contains(line, "permission denied"))
				})
				if err == nil && !named {
					err = fmt.Errorf("no line has /data and the reason:\n%s", logs)
				}
				return err
			})
		})
	}

	core := inspect(t, ids[0])
	network := core.project + "_default"
	for name, test := range map[string]struct {
		network string
		flags   []string
		want    []string
	}{
		"NATS credentials of another authority": {network, []string{"--nats-certfile=/pki/etcd/core.crt", "--nats-keyfile=/pki/etcd/core.key"}, []string{"NATS takes no connection", "certificate", "tls://nats-0:4222"}},
		"NATS credentials of no user":           {network, []string{"--nats-certfile=/pki/nats/server.crt", "--nats-keyfile=/pki/nats/server.key"}, []string{"NATS takes no connection", "Authorization Violation"}},
		"a NATS of another authority":           {network, []string{"--nats-cafile=/pki/etcd/ca.crt"}, []string{"NATS takes no connection", "unknown authority"}},
		"no NATS":                               {network, []string{"--nats-url=tls://nats-9:4222"}, []string{"NATS takes no connection", "nats-9"}},
		"no etcd":                               {network, []string{"--etcd-servers=https://etcd-9:2379"}, []string{"--etcd-servers", "etcd-9", "no such host"}},
		"a key of another certificate":          {network, []string{"--tls-private-key-file=/pki/etcd/core.key"}, []string{"--tls-private-key-file=/pki/etcd/core.key", "does not match"}},
		"a broken authority of etcd":            {network, []string{"--etcd-cafile=/pki/sa.pub"}, []string{"--etcd-cafile=/pki/sa.pub", "does not contain any valid"}},
		"a missing key for NATS":                {network, []string{"--nats-keyfile=/pki/gone.key"}, []string{"--nats-keyfile=/pki/gone.key", "no such file"}},
		"a port in use":                         {"container:" + ids[0], nil, []string{"6443", "address already in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			line := core.run(t, test.network, test.flags...)
			for _, want := range test.want {
				if !strings.Contains(line, want) {
					t.Errorf("the first line is %q, want %q in it", line, want)
				}
			}
		})
	}
	t.Run("a port in use on the host", func(t *testing.T) {
		port, err := p.Port(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.Docker(ctx, "run", "--rm", "--publish=127.0.0.1:"+port+":6443", core.image, "--version")
		if err == nil || !strings.Contains(err.Error(), "127.0.0.1:"+port) || !strings.Contains(err.Error(), "already allocated") {
			t.Errorf("got %v", err)
		}
	})
	// Health checks report what a running tier lacks.
	t.Run("no etcd any more", func(t *testing.T) {
		etcd, err := p.Containers(ctx, "etcd-0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Docker(ctx, "stop", etcd[0]); err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Minute, func() error {
			out, err := engine.Docker(ctx, "inspect", "--format={{range .State.Health.Log}}{{println .Output}}{{end}}", ids[0])
			if err == nil && !strings.Contains(out, "etcd") {
				err = fmt.Errorf("the health check does not name etcd: %s", out)
			}
			return err
		})
	})
}
