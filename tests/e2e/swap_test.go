package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"triune.dev/tests/cluster"
)

// TestMoveIn starts Triune on the etcd of a kube-apiserver that has stopped, and
// TestMoveOut does the reverse: each reads and changes everything that the other wrote, and
// the first reads the changes.
func TestMoveIn(t *testing.T) {
	full(t)
	reference := cluster.Config{Topology: cluster.KubeAPIServer}
	move(t, reference, swapConfig())
}

func TestMoveOut(t *testing.T) {
	full(t)
	reference := cluster.Config{Topology: cluster.KubeAPIServer}
	move(t, swapConfig(), reference)
}

// swapConfig returns the configuration under test with an etcd process.
func swapConfig() cluster.Config {
	config := targetConfig()
	config.Replicas = 1
	config.ExternalEtcd = true
	return config
}

func move(t *testing.T, from, to cluster.Config) {
	first := cluster.Run(t, from)
	fill(t, first)
	before := everything(t, first)
	if len(before) < 200 {
		t.Fatalf("there are only %d objects to compare", len(before))
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}

	to.EtcdURL, to.PKI = first.EtcdURL, first.PKI
	second := cluster.Run(t, to)
	expectSame(t, "read by "+string(to.Topology), before, everything(t, second))
	touch(t, second)
	changed := everything(t, second)
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}

	from.EtcdURL, from.PKI = first.EtcdURL, first.PKI
	third := cluster.Run(t, from)
	expectSame(t, "read by "+string(from.Topology)+" after "+string(to.Topology)+" has written", changed, everything(t, third))
}

// fill writes an object of every kind, by various kinds of requests, and custom resources.
func fill(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	k := newKubectl(t, c, "")
	k.Run("apply", "-f", manifests)
	k.Run("wait", "--for=condition=Established", "crd/things.all-kinds.triune.dev", "--timeout=30s")
	for _, tc := range []string{"small", "large"} {
		k.Stdin("apiVersion: all-kinds.triune.dev/v1\nkind: Thing\nmetadata: {name: "+tc+", namespace: "+everyKind+", labels: {suite: "+everyKind+"}}\nspec: {size: "+tc+", replicas: 3, free: {a: [1, null, {b: 2.5}], empty: {}, list: []}}\n").Run("apply", "--server-side", "-f", "-")
	}
	k.Args = []string{"-n", everyKind}
	k.Run("patch", "deployment/web", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":2,"observedGeneration":1,"conditions":[{"type":"Available","status":"True","reason":"Suite","message":"said so","lastTransitionTime":"2024-01-01T00:00:00Z","lastUpdateTime":"2024-01-01T00:00:00Z"}]}}`)
	k.Run("scale", "things.all-kinds.triune.dev/small", "--replicas=5")
	k.Run("delete", "pvc/data", "--wait=false") // its finalizer keeps it, with a deletion time
	k.Run("create", "token", "robot")
}

// touch changes every object that fill wrote.
func touch(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(restConfig(t, c))
	for _, r := range listable(t, c) {
		list, err := client.Resource(r).List(t.Context(), metav1.ListOptions{LabelSelector: "suite=" + everyKind})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			patch := []byte(`{"metadata":{"annotations":{"triune.dev/touched":"yes"}}}`)
			if _, err := client.Resource(r).Namespace(o.GetNamespace()).Patch(t.Context(), o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Errorf("touch %s %s: %v", r.Resource, o.GetName(), err)
			}
		}
	}
}

// listable returns every resource that can be listed, in every version.
func listable(t *testing.T, c *cluster.Cluster) []schema.GroupVersionResource {
	t.Helper()
	_, lists, err := discovery.NewDiscoveryClientForConfigOrDie(restConfig(t, c)).ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	var all []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && r.Name != "componentstatuses" {
				all = append(all, gv.WithResource(r.Name))
			}
		}
	}
	return all
}

// everything returns each object in each version, by its path.
func everything(t *testing.T, c *cluster.Cluster) map[string]map[string]any {
	t.Helper()
	client := dynamic.NewForConfigOrDie(restConfig(t, c))
	all := map[string]map[string]any{}
	for _, r := range listable(t, c) {
		var list *unstructured.UnstructuredList
		eventually(t, patience, func(ctx context.Context) (err error) {
			list, err = client.Resource(r).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // the CRD is not served yet
				return fmt.Errorf("list %s: %w", r, err)
			}
			return err
		})
		for _, o := range list.Items {
			all[strings.Join([]string{r.Group, r.Version, r.Resource, o.GetNamespace(), o.GetName()}, "/")] = o.Object
		}
	}
	return all
}

// expectSame compares all objects as JSON, byte by byte, except for those that every server
// writes when it starts.
func expectSame(t *testing.T, what string, want, got map[string]map[string]any) {
	t.Helper()
	differences := 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if isServersOwn(id, want[id]) {
			continue
		}
		have, ok := got[id]
		if !ok {
			t.Errorf("%s: %s is not there", what, id)
			continue
		}
		if diff := cmp.Diff(toJSON(t, want[id]), toJSON(t, have)); diff != "" {
			if differences++; differences < 10 {
				t.Errorf("%s: %s (-before +after):\n%s", what, id, diff)
			}
		}
	}
	if differences > 0 {
		t.Errorf("%s: %d of %d objects are not what they were", what, differences, len(want))
	}
}

// isServersOwn reports whether a server writes the object when it starts.
func isServersOwn(id string, o map[string]any) bool {
	for _, prefix := range []string{
		"coordination.k8s.io/v1/leases/kube-system/",                                                // identities
		"/v1/endpoints/default/kubernetes", "discovery.k8s.io/v1/endpointslices/default/kubernetes", // its address
		"/v1/configmaps/kube-system/",             // its authorities
		"/v1/events/", "events.k8s.io/v1/events/", // they expire
	} {
		if strings.HasPrefix(id, prefix) && !strings.Contains(id, "all-kinds") {
			return true
		}
	}
	// Each server has its own set, with the current availability of remote servers.
	return strings.HasPrefix(id, "apiregistration.k8s.io/")
}

func toJSON(t *testing.T, o map[string]any) string {
	t.Helper()
	data, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
