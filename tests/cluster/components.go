package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/tools"
)

// StartControllerManager starts kube-controller-manager with its default controllers and
// its own identity.
func (c *Cluster) StartControllerManager(ctx context.Context) (*Process, error) {
	return c.startComponent(ctx, "kube-controller-manager", c.PKI.ControllerManager, func(kubeconfig string, port int) []string {
		return controllerManagerFlags(c.PKI, c.Dir, kubeconfig, port)
	})
}

// StartScheduler starts kube-scheduler with its own identity.
func (c *Cluster) StartScheduler(ctx context.Context) (*Process, error) {
	return c.startComponent(ctx, "kube-scheduler", c.PKI.Scheduler, func(kubeconfig string, port int) []string {
		return schedulerFlags(c.Dir, kubeconfig, port)
	})
}

// startComponent starts a client of the API that serves /healthz.
func (c *Cluster) startComponent(ctx context.Context, name string, identity pki.Pair, flags func(kubeconfig string, port int) []string) (*Process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(c.Dir, name+".kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, identity); err != nil {
		return nil, err
	}
	return c.startExtra(ctx, name, append(flags(kubeconfig, port), c.Config.Flags[Tier(name)]...), dialable(address(port)))
}

// StartKwok starts kwok with its default stages: every Node becomes ready, pods on it run
// at once, pods of Jobs succeed, and deleted ones go away.
func (c *Cluster) StartKwok(ctx context.Context) (*Process, error) {
	return c.startKwok(ctx, "pod/fast/pod-complete")
}

// StartKwokBesideJobs starts kwok like StartKwok, except that the test decides how pods of
// Jobs end.
func (c *Cluster) StartKwokBesideJobs(ctx context.Context) (*Process, error) { return c.startKwok(ctx) }

func (c *Cluster) startKwok(ctx context.Context, further ...string) (*Process, error) {
	dir, err := tools.ModuleDir(ctx, "kwok", "sigs.k8s.io/kwok")
	if err != nil {
		return nil, fmt.Errorf("start kwok: %w", err)
	}
	var stages []string
	for _, stage := range append([]string{"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready", "pod/fast/pod-delete"}, further...) {
		stages = append(stages, filepath.Join(dir, "kustomize", "stage", stage+".yaml"))
	}
	return c.startExtra(ctx, "kwok", kwokFlags(c.Kubeconfig, stages), nil)
}

// StartCertManager starts cert-manager, whose CRDs the cluster must have.
func (c *Cluster) StartCertManager(ctx context.Context) (*Process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return c.startExtra(ctx, "cert-manager", certManagerFlags(c.Kubeconfig, port), dialable(address(port)))
}

// StartSampleServer starts k8s.io/sample-apiserver with its own etcd prefix and returns its
// port. It asks the cluster who its callers are and what they may do.
func (c *Cluster) StartSampleServer(ctx context.Context, etcdURL string) (*Process, int, error) {
	port, err := freePort()
	if err != nil {
		return nil, 0, err
	}
	p, err := c.startExtra(ctx, "sample-apiserver", sampleServerFlags(c.Dir, c.Kubeconfig, etcdURL, port), dialable(address(port)))
	return p, port, err
}

// StartEtcd starts another etcd, for a server outside of the cluster, and returns its URL.
func (c *Cluster) StartEtcd(ctx context.Context, name string) (string, error) {
	client, err := freePort()
	if err != nil {
		return "", err
	}
	peer, err := freePort()
	if err != nil {
		return "", err
	}
	url := "http://" + address(client)
	p, err := c.newProcess(ctx, name, "etcd", false, etcdFlags(filepath.Join(c.Dir, name), client, peer))
	if err != nil {
		return "", err
	}
	c.extra = append(c.extra, p)
	return url, p.Start(ctx, probe(c.PKI, url+"/health"))
}

// RunEtcd starts an etcd that ends with the test, for servers that are of no cluster, and
// returns its URL.
func RunEtcd(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	made, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Dir: dir, PKI: made}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	url, err := c.StartEtcd(t.Context(), "etcd")
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func (c *Cluster) startExtra(ctx context.Context, name string, args []string, ready func(context.Context) error) (*Process, error) {
	p, err := c.newProcess(ctx, name, name, false, args)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.extra = append(c.extra, p)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p, p.Start(ctx, ready)
}
