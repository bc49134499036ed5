package node

import (
	"testing"
	"time"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

// patience bounds each wait for kubelet, controllers or a container.
const patience = 2 * time.Minute

// Run starts a cluster with controllers and a node for the length of a test, and returns both
// when the node is ready. It fails the test if the machine cannot have one. change, if not nil,
// changes the configuration.
func Run(t *testing.T, topology string, replicas int, change func(*cluster.Config)) (*cluster.Cluster, *Node) {
	t.Helper()
	if lacks := Missing(); lacks != "" {
		t.Fatal(lacks)
	}
	keys, err := pki.Ensure(t.TempDir(), PKIOptions())
	if err != nil {
		t.Fatal(err)
	}
	config := ClusterConfig(cluster.Topology(topology), replicas, keys)
	if change != nil {
		change(&config)
	}
	c := cluster.Run(t, config)
	if err := StartControllers(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	k := cli.Kubectl(t, c.Kubeconfig, "")
	k.Stdin(cluster.BootstrapManifest).Run("apply", "-f", "-")
	n, err := Start(t.Context(), c, cluster.BootstrapToken)
	if n != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(n.Logs(8 << 10))
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := n.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("the node is ready after %v", time.Since(began).Round(100*time.Millisecond))
	return c, n
}
