package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"triune.dev/tests/cluster"
)

const (
	manifests = "testdata/manifests"
	everyKind = "all-kinds" // the namespace, and the label suite=all-kinds
)

// TestEveryStableKind takes one object of every stable built-in kind through its life:
// apply, read, server-side apply, diff, delete.
func TestEveryStableKind(t *testing.T) {
	c := server(t)
	k := newKubectl(t, c, "")
	objects := readManifests(t)

	t.Run("the manifests cover every kind of discovery", func(t *testing.T) {
		covered := map[schema.GroupVersionKind]bool{}
		for _, o := range objects {
			covered[o.GroupVersionKind()] = true
		}
		for _, r := range storedResources(t, c) {
			if !covered[r.gvk] {
				t.Errorf("no manifest has a %s", r.gvk)
			}
		}
	})

	out := k.Run("apply", "-f", manifests)
	if n := strings.Count(out, " created\n"); n != len(objects) {
		t.Fatalf("apply created %d of %d objects:\n%s", n, len(objects), out)
	}
	k.Says([]string{"condition met"}, "wait", "--for=condition=Established", "crd/things.all-kinds.triune.dev", "--timeout=30s")

	t.Run("read back", func(t *testing.T) { expectAsWritten(t, c, objects) })

	t.Run("apply again changes nothing", func(t *testing.T) {
		// kubectl sends a patch if the server orders or defaults a list differently than
		// the manifest does; the patch must have no effect.
		before := resourceVersions(t, c, objects)
		k.Of(t).Run("apply", "-f", manifests)
		if diff := cmp.Diff(before, resourceVersions(t, c, objects)); diff != "" {
			t.Errorf("objects changed (-before +after):\n%s", diff)
		}
	})

	t.Run("server-side apply", func(t *testing.T) {
		k := k.Of(t)
		out := k.Run("apply", "--server-side", "--force-conflicts", "--field-manager=suite", "-f", manifests)
		if n := strings.Count(out, " serverside-applied\n"); n != len(objects) {
			t.Errorf("applied %d of %d objects:\n%s", n, len(objects), out)
		}
		before := resourceVersions(t, c, objects)
		k.Run("apply", "--server-side", "--field-manager=suite", "-f", manifests)
		if diff := cmp.Diff(before, resourceVersions(t, c, objects)); diff != "" {
			t.Errorf("a second apply changed objects (-before +after):\n%s", diff)
		}
		if o := k.Try("diff", "--server-side", "--field-manager=suite", "-f", manifests); o.Code != 0 {
			t.Errorf("diff: exit status %d\n%s%s", o.Code, o.Stdout, o.Stderr)
		}
		expectAsWritten(t, c, objects)
	})

	t.Run("tables", func(t *testing.T) {
		for _, r := range storedResources(t, c) {
			if !slices.Contains(r.verbs, "list") {
				continue
			}
			out := k.Of(t).Run("get", r.argument(), "-A", "-l", "suite="+everyKind, "-o", "wide")
			if !strings.HasPrefix(out, "NAME") {
				t.Errorf("get %s -o wide:\n%s", r.argument(), out)
			}
		}
	})

	t.Run("describe", func(t *testing.T) {
		for _, r := range storedResources(t, c) {
			if slices.Contains(r.verbs, "list") {
				k.Of(t).Says([]string{"Name:"}, "describe", r.argument(), "-A", "-l", "suite="+everyKind)
			}
		}
	})

	t.Run("delete", func(t *testing.T) {
		k := k.Of(t)
		k.Run("delete", "--wait=false", "-f", manifests)
		// Controllers would remove these finalizers, and none runs here.
		for _, what := range []string{"pvc/data", "pv/all-kinds", "vac/all-kinds"} {
			k.Run("patch", "-n", everyKind, what, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		}
		expectGone(t, c, objects)
	})
}

// storedResource is a resource with objects, at its preferred version.
type storedResource struct {
	gvk   schema.GroupVersionKind
	gvr   schema.GroupVersionResource
	verbs []string
}

// argument names the resource unambiguously for kubectl: Events are in two groups.
func (r storedResource) argument() string {
	if r.gvr.Group == "" {
		return r.gvr.Resource + "." + r.gvr.Version + "."
	}
	return r.gvr.Resource + "." + r.gvr.Version + "." + r.gvr.Group
}

// storedResources lists the built-in resources of stable versions that can be
// created and read.
func storedResources(t *testing.T, c *cluster.Cluster) []storedResource {
	t.Helper()
	_, lists, err := discovery.NewDiscoveryClientForConfigOrDie(restConfig(t, c)).ServerGroupsAndResources()
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
		for gv, err := range failed {
			if !isForeign(gv.Group) {
				t.Errorf("discover %s: %v", gv, err)
			}
		}
	} else if err != nil {
		t.Fatal(err)
	}
	var all []storedResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(gv.Version, "beta") || strings.Contains(gv.Version, "alpha") || isForeign(gv.Group) {
			continue
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "create") || !slices.Contains(r.Verbs, "get") {
				continue
			}
			all = append(all, storedResource{gvk: gv.WithKind(r.Kind), gvr: gv.WithResource(r.Name), verbs: r.Verbs})
		}
	}
	if len(all) < 60 {
		t.Fatalf("discovery lists only %d resources", len(all))
	}
	return all
}

// isForeign reports whether tests have added the group.
func isForeign(group string) bool {
	return strings.HasSuffix(group, ".triune.dev") || strings.HasPrefix(group, "gateway.") || strings.HasPrefix(group, "wardle.")
}

// each calls f with every object and a function that reads it from the server.
func each(t *testing.T, c *cluster.Cluster, objects []*unstructured.Unstructured, f func(want *unstructured.Unstructured, get func(context.Context) (*unstructured.Unstructured, error))) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(restConfig(t, c))
	mapper := newMapper(t, c)
	for _, want := range objects {
		gvk := want.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			t.Fatal(err)
		}
		r := client.Resource(mapping.Resource).Namespace(want.GetNamespace())
		f(want, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return r.Get(ctx, want.GetName(), metav1.GetOptions{})
		})
	}
}

func objectID(o *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", o.GroupVersionKind(), o.GetNamespace(), o.GetName())
}

func resourceVersions(t *testing.T, c *cluster.Cluster, objects []*unstructured.Unstructured) map[string]string {
	t.Helper()
	versions := map[string]string{}
	each(t, c, objects, func(want *unstructured.Unstructured, get func(context.Context) (*unstructured.Unstructured, error)) {
		o, err := get(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		// The server writes these by itself at any time.
		if k := want.GetKind(); k != "APIService" && k != "ResourceQuota" {
			versions[objectID(want)] = o.GetResourceVersion()
		}
	})
	return versions
}
