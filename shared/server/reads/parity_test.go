package reads

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
)

func pod(namespace, name string, i int) *corev1.Pod {
	created := metav1.NewTime(time.Unix(1700000000, 0))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: created, Generation: int64(i % 3),
			Labels:          map[string]string{"app": fmt.Sprintf("app-%d", i%5), "odd": "", "every": "one"},
			Annotations:     map[string]string{"note": "<b>&\u2028 \"quoted\"", "long": strings.Repeat("x", 20*(i%7))},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "1"}},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created, FieldsType: "FieldsV1",
				FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{"f:phase":{}}}`)},
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:   fmt.Sprintf("node-%d", i%3),
			Containers: []corev1.Container{{Name: "main", Image: "registry/image:v1", Env: []corev1.EnvVar{{Name: "A", Value: "é"}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &created},
	}
	if i%4 == 0 {
		p.Labels = nil
	}
	return p
}

func widget(namespace, name string, i int) *unstructured.Unstructured {
	u := newWidget().(*unstructured.Unstructured)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetUID(types.UID("uid-" + name))
	u.SetCreationTimestamp(metav1.NewTime(time.Unix(1700000000, 0)))
	if i%4 != 0 {
		u.SetLabels(map[string]string{"app": fmt.Sprintf("app-%d", i%5), "odd": "", "every": "one"})
	}
	u.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "example.com/v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:resourceVersion":{}}}`)},
	}})
	u.Object["data"] = map[string]any{"resourceVersion": "not this one", "metadata": map[string]any{"labels": "nor this"}}
	u.Object["spec"] = map[string]any{"size": int64(i), "ratio": 0.5, "text": "<&> \"\\ \u2028 é", "list": []any{"a", nil, true}}
	return u
}

func configMap(namespace, name string, i int) *corev1.ConfigMap {
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%5)}},
		Data:       map[string]string{"key": strings.Repeat("v", 30*(i%10)), "a": "b"},
	}
	if i%3 == 0 {
		m.Data, m.Annotations = nil, map[string]string{"raw": "yes"} // gets a default
	}
	return m
}

func examplePod(namespace, name string, i int) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%5)}},
		Spec:       example.PodSpec{NodeName: fmt.Sprintf("node-%d", i%3)},
	}
}

func node(name string, i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%5)}}}
}

// accepts are the Accept headers of the tests.
var accepts = []string{
	"", "*/*", "application/json", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json",
	"application/yaml", "application/json;pretty=1", "text/html", "application/json;as=Nothing;g=meta.k8s.io;v=v1",
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
	"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1",
	"application/json;as=Table;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1beta1",
	"application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1",
	"application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
}

// compare sends the same request to both servers and compares the answers. It returns ours,
// and whether the fallback made it.
func (r *resource) compare(t *testing.T, path string, header http.Header) (answer, bool) {
	t.Helper()
	before := r.fallbacks.Load()
	ours := ask(t, r.ours, path, header)
	fell := r.fallbacks.Load() != before
	theirs := ask(t, r.upstream, path, header)
	name := fmt.Sprintf("GET %s %v", path, header)
	if ours.status != theirs.status {
		t.Errorf("%s: status %d, want %d: %s", name, ours.status, theirs.status, ours.unpacked)
	}
	if diff := cmp.Diff(theirs.header, ours.header); diff != "" {
		t.Errorf("%s: header (-upstream +ours):\n%s", name, diff)
	}
	if string(ours.unpacked) != string(theirs.unpacked) {
		at := 0
		for at < min(len(ours.unpacked), len(theirs.unpacked)) && ours.unpacked[at] == theirs.unpacked[at] {
			at++
		}
		from := max(0, at-60)
		t.Errorf("%s: bodies differ at %d (fallback: %t):\n%.200q\nwant\n%.200q", name, at, fell, ours.unpacked[from:], theirs.unpacked[from:])
	}
	return ours, fell
}

// settle waits until the cache has everything that is in etcd.
func (r *resource) settle(t testing.TB) int64 {
	t.Helper()
	revision, err := r.client.Revision(t.Context(), "/registry/")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.space.Await(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	return revision
}

func accept(media string) http.Header {
	if media == "" {
		return http.Header{}
	}
	return http.Header{"Accept": {media}}
}

// TestParity checks that every combination of parameters and headers gets upstream's
// answer, byte by byte.
func TestParity(t *testing.T) {
	w := newWorld(t)
	pods, maps, widgets, nodes, examples := w.pods(t), w.configMaps(t), w.widgets(t), w.nodes(t), w.examples(t)
	var old int64
	for i := range 40 {
		namespace := []string{"default", "kube-system", "a"}[i%3]
		name := fmt.Sprintf("n%02d", i)
		pods.create(t, pod(namespace, name, i))
		maps.create(t, configMap(namespace, name, i))
		widgets.create(t, widget(namespace, name, i))
		nodes.create(t, node(name, i))
		examples.create(t, examplePod(namespace, name, i))
		if i == 30 {
			old = pods.settle(t)
		}
	}
	pods.delete(t, "default", "n03")
	widgets.delete(t, "default", "n03")
	now := pods.settle(t)
	for _, tc := range []struct {
		name           string
		r              *resource
		resource       string
		namespaced     bool
		collection, at string
	}{
		{name: "pods", r: pods, resource: "pods", namespaced: true},
		{name: "config maps with defaults", r: maps, resource: "configmaps", namespaced: true},
		{name: "a kind with an internal version", r: examples, resource: "pods", namespaced: true},
		{name: "custom resources", r: widgets, resource: "widgets", namespaced: true},
		{name: "cluster scoped, uncached", r: nodes, resource: "nodes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := tc.r.path + "/" + tc.resource
			some := all
			if tc.namespaced {
				some = tc.r.path + "/namespaces/default/" + tc.resource
			}
			testGets(t, tc.r, some)
			testLists(t, tc.r, all, some, old, now)
		})
	}
}

func testGets(t *testing.T, r *resource, collection string) {
	served := 0
	for _, name := range []string{"n00", "n06", "n03", "none", "bad%25name", "UPPER"} {
		for _, media := range accepts {
			for _, query := range []string{
				"", "?resourceVersion=0", "?resourceVersion=2", "?resourceVersion=-1", "?resourceVersion=x", "?export=true", "?export=x",
				"?pretty=true", "?pretty=false", "?unknown=1", "?resourceVersion=0&resourceVersion=1",
			} {
				if _, fell := r.compare(t, collection+"/"+name+query, accept(media)); !fell {
					served++
				}
			}
		}
	}
	t.Logf("%d GETs from bytes", served)
	if served < 80 {
		t.Errorf("only %d GETs were answered from bytes", served)
	}
}

func testLists(t *testing.T, r *resource, all, some string, old, now int64) {
	versions := []string{
		"", "resourceVersion=0", "resourceVersion=" + strconv.FormatInt(old, 10), "resourceVersion=" + strconv.FormatInt(now, 10),
		"resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=Exact",
		fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=NotOlderThan", old), fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=Exact", old),
		fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=Exact", now), "resourceVersion=x", "resourceVersion=-3", "resourceVersionMatch=Odd&resourceVersion=1",
	}
	selectors := []string{
		"", "labelSelector=app%3Dapp-1", "labelSelector=app+in+(app-1,app-2)", "labelSelector=app!%3Dapp-1", "labelSelector=!app", "labelSelector=app",
		"labelSelector=app%3Dnone", "labelSelector=app,app%3Dapp-2,every%3Done", "labelSelector=app+notin+(app-1)", "labelSelector=%3D%3D", "labelSelector=odd%3D",
		"fieldSelector=metadata.name%3Dn06", "fieldSelector=metadata.name%3Dn03", "fieldSelector=metadata.name!%3Dn06", "fieldSelector=metadata.namespace%3Ddefault",
		"fieldSelector=spec.nodeName%3Dnode-1", "fieldSelector=spec.nodeName%3Dnode-1,status.phase!%3DFailed", "fieldSelector=spec.nodeName%3D", "fieldSelector=nothing%3D1",
		"fieldSelector=metadata.name%3Dn06&labelSelector=app%3Dapp-1", "fieldSelector=spec.nodeName%3Dnode-1&labelSelector=app%3Dapp-1",
		"shardSelector=shardRange(object.metadata.uid,'0x0','0x8')",
	}
	limits := []string{"", "limit=0", "limit=3", "limit=100", "limit=-1", "limit=x"}
	served := 0
	one := func(path, query string, media string) {
		if _, fell := r.compare(t, path+"?"+query, accept(media)); !fell {
			served++
		}
	}
	for _, path := range []string{all, some} {
		for v, version := range versions {
			for _, selector := range selectors {
				for i, limit := range limits {
					if path == some && i%3 != v%3 {
						continue
					}
					query := strings.Join([]string{version, selector, limit}, "&")
					// Each combination in JSON, and in one other encoding.
					one(path, query, "application/json")
					one(path, query, accepts[(len(version)+len(selector)*3+i)%len(accepts)])
				}
			}
		}
		for _, media := range accepts {
			for _, query := range []string{"", "resourceVersion=0", "limit=7", "labelSelector=app%3Dapp-1", "labelSelector=app%3Dnone", "pretty=true", "timeoutSeconds=3", "unknown=2", "sendInitialEvents=true", "allowWatchBookmarks=true", "continue=x"} {
				one(path, query, media)
			}
			testPages(t, r, path, media)
		}
	}
	t.Logf("%d LISTs from bytes", served)
	if served < 600 {
		t.Errorf("only %d LISTs were answered from bytes", served)
	}
}

// testPages follows continue tokens; writes between two pages must not show.
func testPages(t *testing.T, r *resource, path, media string) {
	for _, query := range []string{"limit=7", "limit=7&labelSelector=app", "limit=2&labelSelector=app%3Dapp-1"} {
		token := ""
		for page := range 10 {
			a, fell := r.compare(t, path+"?"+query+"&continue="+url.QueryEscape(token), http.Header{"Accept": {"application/json"}})
			if fell {
				t.Errorf("page %d of %s?%s was not answered from bytes", page, path, query)
			}
			if media != "application/json" {
				r.compare(t, path+"?"+query+"&continue="+url.QueryEscape(token), accept(media))
			}
			var list struct{ Metadata metav1.ListMeta }
			if err := json.Unmarshal(a.unpacked, &list); err != nil {
				t.Fatal(err)
			}
			if token = list.Metadata.Continue; token == "" {
				break
			}
		}
	}
}
