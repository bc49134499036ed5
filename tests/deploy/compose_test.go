package deploy

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/tests/cluster"
	"triune.dev/tests/deploy/engine"
)

// tierServices are the services of docker-compose.yml that answer requests.
var tierServices = []string{"aggregator", "core", "extensions"}

// needEngine skips a test without a container engine.
func needEngine(t *testing.T) {
	t.Helper()
	if err := engine.Available(t.Context()); err != nil {
		t.Skipf("containers are not tested: %v", err)
	}
}

// composeProject prepares docker-compose.yml with images that need no registry; more names
// stand-ins besides etcd and NATS. Everything is removed with the test, including volumes.
// The kubeconfig will be in dir.
func composeProject(t *testing.T, more, env []string) (p *engine.Project, dir string) {
	t.Helper()
	needEngine(t)
	ctx := t.Context()
	images, err := engine.Images(ctx, tierServices...)
	if err != nil {
		t.Fatal(err)
	}
	standIns, err := engine.StandIns(ctx, append([]string{"etcd", "nats-server"}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	variables := append(append(images, standIns...), "TRIUNE_PORT="+strconv.Itoa(port), "TRIUNE_KUBECONFIG_DIR="+dir)
	p, err = engine.NewProject(ctx, "triune-test-"+strconv.Itoa(port), append(variables, env...))
	if err != nil {
		t.Skipf("docker-compose.yml is not tested: %v", err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if t.Failed() {
			t.Log(p.Complaints(ctx, 30))
		}
		if _, err := p.Compose(ctx, "down", "--volumes", "--remove-orphans", "--timeout=10"); err != nil {
			t.Error(err)
		}
	})
	return p, dir
}

// upFlags start two replicas of each tier.
var upFlags = []string{"--detach", "--no-build", "--scale=aggregator=2", "--scale=core=2", "--scale=extensions=2"}

// composeUp starts the project of composeProject, with two replicas of each tier.
func composeUp(t *testing.T, more, env []string, args ...string) (*engine.Project, *kubernetes.Clientset, string) {
	t.Helper()
	p, dir := composeProject(t, more, env)
	ctx := t.Context()
	if _, err := p.Compose(ctx, slices.Concat(args, []string{"up"}, upFlags)...); err != nil {
		t.Fatal(err)
	}
	healthy(t, p, append([]string{"api"}, tierServices...)...)
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Timeout = -1, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return p, client, kubeconfig
}

func healthy(t *testing.T, p *engine.Project, services ...string) {
	t.Helper()
	for _, service := range services {
		eventually(t, 2*time.Minute, func() error { return p.Healthy(t.Context(), service) })
	}
}

// TestComposeLosesNothing kills every container in turn and disconnects tiers from the
// network while clients write and watch; then it stops the whole installation and starts it
// again.
func TestComposeLosesNothing(t *testing.T) {
	full(t)
	p, client, kubeconfig := composeUp(t, nil, nil)
	ctx := t.Context()
	fromStream(t, p, kubeconfig)
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ledger"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().ConfigMaps("ledger").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{written: map[string]bool{}}
	for range 3 {
		if err := l.watch(ctx, client, list.ResourceVersion); err != nil {
			t.Fatal(err)
		}
	}
	writing, end := context.WithCancel(ctx)
	defer end()
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() { l.write(writing, client, i) })
	}
	progress := func(what string) {
		t.Helper()
		before := l.acknowledged()
		eventually(t, time.Minute, func() error {
			if n := l.acknowledged() - before; n < 20 {
				return fmt.Errorf("after %s: %d writes since", what, n)
			}
			return nil
		})
	}
	progress("the start")
	for _, service := range []string{"core", "extensions", "aggregator", "nats-0", "etcd-0", "api"} {
		ids, err := p.Containers(ctx, service)
		if err != nil || len(ids) == 0 {
			t.Fatalf("containers of %s: %v, %v", service, ids, err)
		}
		if _, err := engine.Docker(ctx, "kill", ids[0]); err != nil {
			t.Fatal(err)
		}
		if len(ids) > 1 {
			progress("the death of one " + service)
		}
		if _, err := engine.Docker(ctx, "start", ids[0]); err != nil {
			t.Fatal(err)
		}
		healthy(t, p, service)
		progress("the death of " + service)
	}
	for _, service := range []string{"core", "aggregator"} {
		ids, err := p.Containers(ctx, service)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Cut(ctx, ids[0]); err != nil {
			t.Fatal(err)
		}
		progress("the cut of one " + service)
		if err := p.Join(ctx, ids[0], service); err != nil {
			t.Fatal(err)
		}
		progress("the cut of " + service)
	}
	fromStream(t, p, kubeconfig)

	// Stop while clients write and watch. The total time depends on the engine, too; each
	// container has ten seconds.
	before := l.acknowledged()
	took := stop(t, p, append([]string{"etcd-0", "nats-0", "api"}, tierServices...))
	t.Logf("stopped within %v, after %d writes", took.Round(100*time.Millisecond), before)
	// Containers and networks are removed, volumes remain.
	if _, err := p.Compose(ctx, "down"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Compose(ctx, append([]string{"up"}, upFlags...)...); err != nil {
		t.Fatal(err)
	}
	healthy(t, p, append([]string{"etcd-0", "api"}, tierServices...)...)
	progress("the end of everything")
	fromStream(t, p, kubeconfig)
	end()
	writers.Wait()
	eventually(t, time.Minute, func() error { return l.settled(ctx, client) })
	t.Logf("%d writes were acknowledged, %d failed, %d watchers saw them", len(l.written), l.failed, len(l.watchers))
}

// stop stops all containers of an installation. Those of the named services must exit
// without an error.
func stop(t *testing.T, p *engine.Project, services []string, args ...string) time.Duration {
	t.Helper()
	ctx := t.Context()
	begin := time.Now()
	if _, err := p.Compose(ctx, append(args, "stop")...); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	// A container that takes longer than ten seconds is killed (exit status 137).
	for _, service := range services {
		ids, err := p.Containers(ctx, service)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			code, err := engine.Docker(ctx, "inspect", "--format={{.State.ExitCode}}", id)
			if err != nil {
				t.Fatal(err)
			}
			if code = strings.TrimSpace(code); code != "0" {
				logs, _ := engine.Logs(ctx, id)
				t.Errorf("%s ended with %s:\n%s", service, code, logs[max(0, len(logs)-4<<10):])
			}
		}
	}
	return took
}

// fromStream waits until every replica of every tier gets its events from NATS.
func fromStream(t *testing.T, p *engine.Project, kubeconfig string) {
	t.Helper()
	for _, service := range tierServices {
		ids, err := p.Containers(t.Context(), service)
		if err != nil || len(ids) == 0 {
			t.Fatalf("containers of %s: %v, %v", service, ids, err)
		}
		for _, id := range ids {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			address, err := p.Address(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			config.Host, config.ServerName, config.Timeout = "https://"+address+":6443", service, 5*time.Second
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("triune_eventlog_from_stream{tier=%q} 1\n", service)
			eventually(t, time.Minute, func() error {
				metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
				if err == nil && !strings.Contains(string(metrics), want) {
					err = fmt.Errorf("a replica of %s has no %q", service, want)
				}
				return err
			})
		}
	}
}

// TestComposeIsAWholeCluster brings a workload to its goal state with the profile cluster;
// with the profile monitoring it scrapes every tier and has data for every panel.
func TestComposeIsAWholeCluster(t *testing.T) {
	full(t)
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p, _, kubeconfig := composeUp(t, []string{"kube-controller-manager", "kube-scheduler", "kwok", "kubectl", "prometheus"}, []string{"TRIUNE_PROMETHEUS_PORT=" + strconv.Itoa(port)}, "--profile=cluster")
	kubectl := program{name: "kubectl", args: []string{"--kubeconfig", kubeconfig}}
	kubectl.must(t, "wait", "--for=create", "node/node-0", "node/node-1", "node/node-2", "--timeout=90s")
	kubectl.must(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout=90s")
	kubectl.must(t, "create", "deployment", "web", "--image=registry.example/web:1", "--replicas=5")
	kubectl.must(t, "rollout", "status", "deployment/web", "--timeout=90s")
	kubectl.must(t, "create", "job", "once", "--image=registry.example/once:1")
	kubectl.must(t, "wait", "--for=condition=Complete", "job/once", "--timeout=90s")

	// Grafana cannot be built from Go modules, so it is not started here.
	if _, err := p.Compose(t.Context(), slices.Concat([]string{"--profile=monitoring", "up", "--no-recreate"}, upFlags, []string{"prometheus"})...); err != nil {
		t.Fatal(err)
	}
	healthy(t, p, "prometheus")
	prom := prometheus{"http://127.0.0.1:" + strconv.Itoa(port)}
	for query, want := range map[string]int{
		`up{job="kube-apiserver"} == 1`: 6,
		`up{job="etcd"} == 1`:           1,
	} {
		eventually(t, 2*time.Minute, func() error {
			if n, err := prom.series(query); err != nil || n != want {
				return fmt.Errorf("%s: %d series, want %d: %w", query, n, want, err)
			}
			return nil
		})
	}
	load(t, kubeconfig)
	prom.draws(t, time.Now().Add(4*time.Minute), "")
	prom.rules(t)
}
