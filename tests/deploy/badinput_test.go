package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/deploy/engine"
)

// again is how to start a container of an installation once more, with other flags.
type again struct {
	project, image string
	flags          []string
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
			Labels          map[string]string
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		t.Fatalf("%d containers: %v", len(all), err)
	}
	c := all[0].Config
	return again{c.Labels["com.docker.compose.project"], c.Image, append(c.Entrypoint[1:], c.Cmd...)}
}

// run starts the container with flags that replace those of the same name. It
// returns the first line that begins as errors do, when there is one or when the
// container has ended; the container ends with it.
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

// problem is a line that says that something is wrong.
var problem = regexp.MustCompile(`(?m)^(error: |E\d{4} ).*$`)

func replaced(flags []string, name string) bool {
	for _, flag := range flags {
		if strings.HasPrefix(flag, name+"=") {
			return true
		}
	}
	return false
}

// TestComposeBadInput: what a person does wrong is named by the first line that
// they see.
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

	core := inspect(t, ids[0])
	network := core.project + "_default"
	for name, test := range map[string]struct {
		network string
		flags   []string
		want    []string
	}{
		"NATS credentials of another authority": {network, []string{"--nats-certfile=/pki/etcd/client.crt", "--nats-keyfile=/pki/etcd/client.key"}, []string{"NATS takes no connection", "certificate", "tls://nats-0:4222"}},
		"NATS credentials of no user":           {network, []string{"--nats-certfile=/pki/nats/server.crt", "--nats-keyfile=/pki/nats/server.key"}, []string{"NATS takes no connection", "Authorization Violation"}},
		"a NATS of another authority":           {network, []string{"--nats-cafile=/pki/etcd/ca.crt"}, []string{"NATS takes no connection", "unknown authority"}},
		"no NATS":                               {network, []string{"--nats-url=tls://nats-9:4222"}, []string{"NATS takes no connection", "nats-9"}},
		"no etcd":                               {network, []string{"--etcd-servers=https://etcd-9:2379"}, []string{"--etcd-servers", "etcd-9", "no such host"}},
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
	// Health checks say what a running tier lacks.
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

// TestComposeHALosesAMember: with three members of etcd and NATS each, one of both
// may be lost.
func TestComposeHALosesAMember(t *testing.T) {
	full(t)
	file := filepath.Join("deploy", "compose", "ha.env")
	p, client, kubeconfig := composeUp(t, nil, nil, "--env-file="+file)
	ctx := t.Context()
	fromStream(t, p, kubeconfig)
	write := func(name string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) { // the answer to an attempt was lost
				return nil
			}
			return err
		})
	}
	write("before")
	for _, service := range []string{"etcd-0", "nats-0"} {
		ids, err := p.Containers(ctx, service)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Docker(ctx, "kill", ids[0]); err != nil {
			t.Fatal(err)
		}
		write("without-" + service)
	}
	healthy(t, p, tierServices...)
	fromStream(t, p, kubeconfig)
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil || len(list.Items) != 3 {
		t.Errorf("%d objects, want 3: %v", len(list.Items), err)
	}
}
