package twins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"triune.dev/tests/cluster"
)

// content describes the etcd before it is copied.
type content struct {
	// resources are all resources that can be listed.
	resources []resource
	// early is a revision before the custom resources of this suite, and late the last one.
	early, late int64
	// history is a revision before the changes in namespace story, and events are these
	// changes.
	history int64
	events  []*clientv3.Event
}

// resource is a resource that can be listed, in one version.
type resource struct {
	schema.GroupVersionResource
	namespaced, watchable bool
}

// path returns the path of the resource, in a namespace if one is given.
func (r resource) path(namespace string) string {
	base := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		base = "/api/" + r.Version
	}
	if namespace != "" {
		base += "/namespaces/" + namespace
	}
	return base + "/" + r.Resource
}

// manifests have an object of every kind.
const manifests = "../../e2e/testdata/manifests"

// filler writes objects.
type filler struct {
	t      *testing.T
	mapper *restmapper.DeferredDiscoveryRESTMapper
	client dynamic.Interface
	etcd   *clientv3.Client
}

func fill(t *testing.T, c *cluster.Cluster, etcd *clientv3.Client) content {
	t.Helper()
	config, err := c.REST()
	if err != nil {
		t.Fatal(err)
	}
	disco := discovery.NewDiscoveryClientForConfigOrDie(config)
	f := &filler{t: t, client: dynamic.NewForConfigOrDie(config), etcd: etcd, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))}
	files, err := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		f.createAll(file)
	}
	var out content
	out.early = f.revision()
	f.createAll("testdata/definition.yaml")
	f.awaitCustom()
	f.createAll("testdata/objects.yaml")
	f.storeOtherVersion()
	f.createAll("testdata/later.yaml")
	f.many()
	out.history = f.revision()
	f.writeStory()
	out.events = f.changesAfter(out.history)
	out.resources = f.discover(disco)
	out.late = f.revision()
	return out
}

func (f *filler) revision() int64 {
	f.t.Helper()
	resp, err := f.etcd.Get(f.t.Context(), padding)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.Header.Revision
}

func (f *filler) createAll(file string) {
	f.t.Helper()
	in, err := os.Open(file)
	if err != nil {
		f.t.Fatal(err)
	}
	defer in.Close()
	for decoder := yaml.NewYAMLOrJSONDecoder(in, 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			f.t.Fatalf("%s: %v", file, err)
		}
		// The status of a remote APIService keeps changing.
		if len(o.Object) > 0 && o.GetKind() != "APIService" {
			f.create(o)
		}
	}
}

// of returns a client for the resource of an object.
func (f *filler) of(o *unstructured.Unstructured) dynamic.ResourceInterface {
	f.t.Helper()
	kind := o.GroupVersionKind()
	var mapping *meta.RESTMapping
	// A custom resource is served before it is in discovery.
	f.until("discover "+kind.String(), func(context.Context) (err error) {
		if mapping, err = f.mapper.RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) {
			f.mapper.Reset()
		}
		return err
	})
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return f.client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	return f.client.Resource(mapping.Resource)
}

func (f *filler) create(o *unstructured.Unstructured) {
	f.t.Helper()
	client := f.of(o)
	// The CRD or a dependency of the object may have been created just before.
	f.until("create "+o.GetKind()+" "+o.GetName(), func(ctx context.Context) error {
		_, err := client.Create(ctx, o, metav1.CreateOptions{FieldManager: "twins"})
		return err
	})
}

func (f *filler) until(what string, attempt func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	for {
		err := attempt(ctx)
		if err == nil {
			return
		}
		if apierrors.IsInvalid(err) {
			f.t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-ctx.Done():
			f.t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var widgets = schema.GroupVersionResource{Group: "twins.triune.dev", Version: "v1", Resource: "widgets"}

func (f *filler) awaitCustom() {
	f.t.Helper()
	f.until("serve widgets", func(ctx context.Context) error {
		for _, version := range []string{"v1", "v1beta1"} {
			if _, err := f.client.Resource(widgets.GroupResource().WithVersion(version)).List(ctx, metav1.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// storeOtherVersion changes the storage version to v1, and returns when a write has used
// it. Earlier objects remain stored as v1beta1.
func (f *filler) storeOtherVersion() {
	f.t.Helper()
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	patch := `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`
	if _, err := f.client.Resource(definitions).Patch(f.t.Context(), "widgets.twins.triune.dev", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		f.t.Fatal(err)
	}
	n := 0
	f.until("store widgets as v1", func(ctx context.Context) error {
		n++
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"turn":"%d"}}}`, n)
		if _, err := f.client.Resource(widgets).Namespace("twins").Patch(ctx, "second", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
		resp, err := f.etcd.Get(ctx, "/registry/twins.triune.dev/widgets/twins/second")
		if err != nil || len(resp.Kvs) != 1 {
			return fmt.Errorf("not stored: %v", err)
		}
		// No client has written it as v1beta1, so its managed fields do not contain that
		// version.
		if strings.Contains(string(resp.Kvs[0].Value), "twins.triune.dev/v1beta1") {
			return errors.New("stored as before")
		}
		return nil
	})
}

// many creates enough config maps for several pages; selectors match some of them.
func (f *filler) many() {
	f.t.Helper()
	for i := range 60 {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": fmt.Sprintf("many-%02d", i*7%60), "namespace": "twins", "labels": map[string]any{"third": fmt.Sprint(i % 3), "few": fmt.Sprint(i % 20)}},
			// Enough for several blocks of a compressed list.
			"data": map[string]any{"text": strings.Repeat(fmt.Sprintf("%d <&> \u2028 ü ", i), 100)},
		}}
		f.create(o)
	}
}

// writeStory makes a history in the namespace story that ends with the deletion of its
// objects. A watch that has received the last object has received everything.
func (f *filler) writeStory() {
	f.t.Helper()
	story := func(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{
			"name": name, "namespace": "story", "labels": map[string]any{"watched": "yes"}, "annotations": map[string]any{"a": "<b> & ü"},
		}}}
		for key, value := range spec {
			o.Object[key] = value
		}
		return o
	}
	pod := map[string]any{"spec": map[string]any{
		"nodeName": "twin", "automountServiceAccountToken": false, "serviceAccountName": "default",
		"containers": []any{map[string]any{"name": "a", "image": "a"}},
	}}
	for _, kind := range []struct {
		apiVersion, kind string
		with             map[string]any
	}{
		{"v1", "ConfigMap", map[string]any{"data": map[string]any{"x": "1"}}},
		{"v1", "Pod", pod},
		{"coordination.k8s.io/v1", "Lease", map[string]any{"spec": map[string]any{"holderIdentity": "a", "leaseDurationSeconds": int64(5)}}},
		{"twins.triune.dev/v1", "Widget", map[string]any{"spec": map[string]any{"color": "red", "size": int64(3)}}},
		{"twins.triune.dev/v1beta1", "Widget", map[string]any{"spec": map[string]any{"color": "red", "shape": "round"}}},
	} {
		prefix := strings.ReplaceAll(strings.ToLower(kind.kind+"-"+kind.apiVersion), "/", ".")
		var names []string
		for i := range 3 {
			o := story(kind.apiVersion, kind.kind, fmt.Sprintf("%s-%d", prefix, i), kind.with)
			names = append(names, o.GetName())
			f.create(o)
			for _, patch := range []string{
				`{"metadata":{"annotations":{"seen":"once"}}}`,
				`{"metadata":{"labels":{"watched":"no"}}}`,   // leaves the selector
				`{"metadata":{"annotations":{"seen":null}}}`, // outside of the selector
				`{"metadata":{"labels":{"watched":"yes"}}}`,  // enters the selector again
			}[:4-i] {
				f.patch(o, patch)
			}
		}
		last := story(kind.apiVersion, kind.kind, prefix+"-"+lastName, kind.with)
		zero := int64(0)
		for _, name := range names {
			gone := last.DeepCopy()
			gone.SetName(name)
			if err := f.of(gone).Delete(f.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
				f.t.Fatal(err)
			}
		}
		f.create(last)
		if err := f.of(last).Delete(f.t.Context(), last.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// lastName is in the name of the last object of each kind.
const lastName = "curtain"

func (f *filler) patch(o *unstructured.Unstructured, patch string) {
	f.t.Helper()
	if _, err := f.of(o).Patch(f.t.Context(), o.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// changesAfter returns the changes in the namespace story after a revision.
func (f *filler) changesAfter(after int64) []*clientv3.Event {
	f.t.Helper()
	now := f.revision()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	var all []*clientv3.Event
	for resp := range f.etcd.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(after+1), clientv3.WithProgressNotify()) {
		if err := resp.Err(); err != nil {
			f.t.Fatal(err)
		}
		for _, e := range resp.Events {
			if strings.Contains(string(e.Kv.Key), "/story/") {
				all = append(all, e)
			}
		}
		// The last change is in the story.
		if resp.Header.Revision >= now && len(all) > 0 && strings.Contains(string(all[len(all)-1].Kv.Key), "v1beta1-"+lastName) && all[len(all)-1].Type == clientv3.EventTypeDelete {
			return all
		}
	}
	f.t.Fatalf("the history is not whole: %d events", len(all))
	return nil
}

// discover returns the resources that can be listed, in each of their versions.
func (f *filler) discover(disco *discovery.DiscoveryClient) []resource {
	f.t.Helper()
	_, lists, err := disco.ServerGroupsAndResources()
	if err != nil {
		f.t.Fatal(err)
	}
	var all []resource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, r := range list.APIResources {
			// The states of components are queried when they are listed, and come in random
			// order.
			if slices.Contains(r.Verbs, "list") && !strings.Contains(r.Name, "/") && r.Name != "componentstatuses" {
				all = append(all, resource{gv.WithResource(r.Name), r.Namespaced, slices.Contains(r.Verbs, "watch")})
			}
		}
	}
	return all
}
