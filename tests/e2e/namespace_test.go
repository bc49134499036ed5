package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

// TestNamespaceWaitsForCustomResources checks that kube-controller-manager, which deletes
// the resources in discovery and then the namespace, does not finish while the custom
// resources are unknown. Otherwise they would be left behind without a namespace.
func TestNamespaceWaitsForCustomResources(t *testing.T) {
	full(t)
	switch cluster.Topology(*target) {
	case cluster.Tiers:
		t.Run("aggregator that has started before", func(t *testing.T) { namespaceWithoutExtensions(t, false) })
		t.Run("new aggregator", func(t *testing.T) { namespaceWithoutExtensions(t, true) })
	default:
		t.Run("restarts", namespaceDuringRestarts)
	}
}

const keeps = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: keeps.namespace.triune.dev}
spec:
  group: namespace.triune.dev
  scope: Namespaced
  names: {plural: keeps, singular: keep, kind: Keep}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// newNamespaceWithThing creates the namespace doomed with a custom resource in it.
func newNamespaceWithThing(t *testing.T, c *cluster.Cluster) cli.Command {
	t.Helper()
	k := newKubectl(t, c, "doomed")
	k.Stdin(keeps).Run("apply", "-f", "-")
	k.Run("wait", "--for=condition=Established", "crd/keeps.namespace.triune.dev", "--timeout=30s")
	k.Run("create", "namespace", "doomed")
	eventually(t, patience, func(context.Context) error {
		out := k.Stdin("apiVersion: namespace.triune.dev/v1\nkind: Keep\nmetadata: {name: one}\n").Try("create", "-f", "-")
		if out.Code != 0 {
			return fmt.Errorf("%s", out.Stderr)
		}
		return nil
	})
	return k
}

// expectNamespaceGone waits until the namespace is deleted, and checks that nothing was
// left behind.
func expectNamespaceGone(t *testing.T, k cli.Command) {
	t.Helper()
	eventually(t, 3*patience, func(context.Context) error {
		if out := k.Try("get", "namespace", "doomed", "-o", "jsonpath={.status}"); !strings.Contains(out.Stderr, "(NotFound)") {
			return fmt.Errorf("the namespace is there: %s%s", out.Stdout, out.Stderr)
		}
		return nil
	})
	if left := k.Run("get", "keeps.namespace.triune.dev", "-o", "name"); left != "" {
		t.Errorf("left behind in a namespace that is gone: %s", left)
	}
}

// namespaceWithoutExtensions starts every other tier while the extensions tier is down. A
// new aggregator has no APIServices that name the groups served before.
func namespaceWithoutExtensions(t *testing.T, newAggregator bool) {
	c := cluster.Run(t, cluster.Config{Topology: cluster.Tiers, EtcdPerTier: true})
	k := newNamespaceWithThing(t, c)
	for _, tier := range []cluster.Tier{cluster.Aggregator, cluster.Core, cluster.Extensions} {
		c.Kill(tier, 0)
	}
	if newAggregator {
		c.Kill(cluster.EtcdOf(cluster.Aggregator), 0)
		if err := os.RemoveAll(filepath.Join(c.Dir, string(cluster.EtcdOf(cluster.Aggregator)))); err != nil {
			t.Fatal(err)
		}
		if err := c.StartReplica(t.Context(), cluster.EtcdOf(cluster.Aggregator), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tier := range []cluster.Tier{cluster.Core, cluster.Aggregator} {
		if err := c.StartReplica(t.Context(), tier, 0); err != nil {
			t.Fatal(err)
		}
	}
	k.Run("delete", "namespace", "doomed", "--wait=false")
	if _, err := c.StartControllerManager(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*patience, func(context.Context) error {
		// Only an existing namespace has conditions.
		if status := k.Run("get", "namespace", "doomed", "-o", `jsonpath={.status.conditions[?(@.type=="NamespaceDeletionDiscoveryFailure")].status}`); status != "True" {
			return fmt.Errorf("NamespaceDeletionDiscoveryFailure is %q", status)
		}
		return nil
	})
	if err := c.StartReplica(t.Context(), cluster.Extensions, 0); err != nil {
		t.Fatal(err)
	}
	expectNamespaceGone(t, k)
}

// namespaceDuringRestarts kills the server repeatedly while the namespace is deleted: a
// server that starts serves before it knows its CRDs.
func namespaceDuringRestarts(t *testing.T) {
	c := cluster.Run(t, targetConfig())
	k := newNamespaceWithThing(t, c)
	hold := func(finalizers string) {
		k.Run("patch", "keeps.namespace.triune.dev", "one", "--type=merge", "-p", `{"metadata":{"finalizers":`+finalizers+`}}`)
	}
	hold(`["namespace.triune.dev/hold"]`)
	if _, err := c.StartControllerManager(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A controller manager exits if the server goes away while it starts; this one has
	// started.
	k.Run("create", "namespace", "first")
	k.Run("delete", "namespace", "first", "--timeout=60s")
	k.Run("delete", "namespace", "doomed", "--wait=false")
	tier := c.ServingTiers()[0]
	for range 5 {
		c.Kill(tier, 0)
		if err := c.StartReplica(t.Context(), tier, 0); err != nil {
			t.Fatal(err)
		}
	}
	hold("null")
	expectNamespaceGone(t, k)
}
