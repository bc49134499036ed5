package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"triune.dev/tests/cluster"
	"triune.dev/tests/faults/wire"
)

var target, replicas = cluster.SuiteFlags("topology to test: triune or tiers (or kube-apiserver, to test the tests)", 2)

var (
	seed     = flag.Uint64("seed", uint64(time.Now().UnixNano()%1e9), "of all random choices")
	pictures = flag.String("pictures", "", "a directory for pictures of histories that are not linearizable")
	onlyFor  = flag.Int("rounds", 0, "rounds of the linearizability test; 0 stands for its default")
)

// run starts a control plane with etcd and NATS in separate processes, so that they can
// fail alone.
func run(t *testing.T) *cluster.Cluster {
	t.Helper()
	t.Logf("-target=%s -replicas=%d -seed=%d", *target, *replicas, *seed)
	return cluster.Run(t, cluster.Config{
		Topology: cluster.Topology(*target), Replicas: *replicas, ExternalEtcd: true, ExternalNATS: true,
	})
}

// random returns the random choices of a test.
func random() *rand.Rand { return rand.New(rand.NewPCG(*seed, 0)) }

// client returns an administrator's client with its own connections.
func client(t *testing.T, c *cluster.Cluster) *http.Client {
	t.Helper()
	h, err := wire.NewClient(c.PKI)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	return h
}

// servers returns all servers of config maps: the replicas of core, directly, and those of
// the aggregator.
func servers(c *cluster.Cluster) []string {
	if c.Config.Topology != cluster.Tiers {
		return []string{c.ReplicaURL(cluster.Tier(c.Config.Topology), 0)}
	}
	var urls []string
	for i := range c.Config.Replicas {
		urls = append(urls, c.ReplicaURL(cluster.Core, i), c.ReplicaURL(cluster.Aggregator, i))
	}
	return urls
}

// createNamespace creates a namespace, retrying until it exists.
func createNamespace(t *testing.T, c *cluster.Cluster, h *http.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		if last = tryNamespace(ctx, h, servers(c)[0], name); last == nil {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
	t.Fatalf("create namespace %s: %v", name, last)
}

func tryNamespace(ctx context.Context, h *http.Client, server, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := wire.NewRequest(ctx, http.MethodPost, server+"/api/v1/namespaces", "application/json",
		wire.Object{APIVersion: "v1", Kind: "Namespace", Metadata: wire.Metadata{Name: name}})
	if err != nil {
		return err
	}
	status, o, err := wire.Do(h, req)
	if err == nil && status != http.StatusCreated && status != http.StatusConflict {
		err = fmt.Errorf("%d %s", status, o.Message)
	}
	return err
}

// pause waits for the duration of a fault, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
