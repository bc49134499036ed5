package e2e

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cluster"
)

// TestEndpointsOfAggregators: the endpoints of the Service default/kubernetes are the
// aggregators. The address of one that has died disappears with its lease of 15 s, and that of
// one that shuts down at once.
func TestEndpointsOfAggregators(t *testing.T) {
	needs(t)
	if targetConfig().Topology != cluster.Tiers {
		t.Skip("one process advertises itself, as kube-apiserver does")
	}
	c := cluster.Run(t, cluster.Config{Topology: cluster.Tiers, Replicas: 2, AdvertiseEach: true})
	client := clientset(t, c)
	port := func(i int) string {
		u, err := url.Parse(c.ReplicaURL(cluster.Aggregator, i))
		if err != nil {
			t.Fatal(err)
		}
		return u.Port()
	}
	await := func(what string, within time.Duration, replicas ...int) {
		t.Helper()
		var want []string
		for _, i := range replicas {
			want = append(want, cluster.Advertised(i)+":"+port(0))
		}
		var diff string
		for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			slice, err := client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			if err != nil {
				diff = err.Error()
				continue
			}
			var got []string
			for _, endpoint := range slice.Endpoints {
				for _, port := range slice.Ports {
					got = append(got, fmt.Sprintf("%s:%d", endpoint.Addresses[0], *port.Port))
				}
			}
			slices.Sort(got)
			if diff = cmp.Diff(want, got); diff == "" {
				return
			}
		}
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
	await("at the start", time.Minute, 0, 1)
	c.Kill(cluster.Aggregator, 1)
	await("after one has died", 90*time.Second, 0)
	if err := c.StartReplica(t.Context(), cluster.Aggregator, 1); err != nil {
		t.Fatal(err)
	}
	await("after it has come back", time.Minute, 0, 1)
	if err := c.Process(cluster.Aggregator, 1).Stop(); err != nil {
		t.Fatal(err)
	}
	// Well before its lease would have expired.
	await("after it has shut down", 5*time.Second, 0)
}
