package resources

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
)

// parsed returns the request that a server reads of a target, nil where it reads none.
func (c call) parsed() *http.Request {
	target, err := url.ParseRequestURI(c.path)
	if err != nil {
		return nil
	}
	var req *http.Request
	if c.body == "" {
		req = httptest.NewRequest(c.method, "/", nil)
	} else {
		req = httptest.NewRequest(c.method, "/", strings.NewReader(c.body))
	}
	req.URL, req.RequestURI = target, c.path
	req.Header.Set("Audit-Id", "1")
	for key, value := range c.header {
		req.Header.Set(key, value)
	}
	return req
}

// FuzzPaths requests arbitrary paths below a group-version, with each method. The answers must
// equal those of upstream's router.
func FuzzPaths(f *testing.F) {
	for i, path := range []string{
		"namespaces/x/pods/p/status", "nodes/n/proxy/a%2Fb", "watch/namespaces/x/pods", "namespaces//pods//p//", "./nodes", "nodes/../pods",
		"nodes/%2e%2e/proxy", "nodes/n/proxy/..%2f", "%2Fnodes", "nodes%2Fn", "namespaces/x/pods/p%00", "nodes/n?x=/proxy", "nodes/{name}", "nodes/n:proxy", "nodes/*",
		"namespaces/x/pods/p/log", "watch/watch/nodes", "namespaces/namespaces/finalize", "nodes/é", "nodes/n/proxy/?a", "namespaces/x/status/", "Pods",
	} {
		f.Add(uint8(i), path)
	}
	storage := storages()
	ours, theirs := withServerContext(installed(f, examplev1.SchemeGroupVersion, storage)), upstream(f, examplev1.SchemeGroupVersion, storage)
	methods := append(allMethods[:len(allMethods):len(allMethods)], "BREW")
	f.Fuzz(func(t *testing.T, method uint8, path string) {
		c := call{method: methods[int(method)%len(methods)], path: root + "/" + path}
		req := c.parsed()
		if req == nil || strings.Trim(strings.TrimPrefix(req.URL.Path, root), "/") == "" {
			return // discovery serves the root itself
		}
		if diff := cmp.Diff(c.answered(theirs), c.answered(ours)); diff != "" {
			t.Errorf("%s (-k8s.io/apiserver +ours):\n%s", c, diff)
		}
	})
}

// answered is like to, but accepts paths that httptest refuses.
func (c call) answered(handler http.Handler) answer {
	w := connection{httptest.NewRecorder()}
	handler.ServeHTTP(w, c.parsed())
	return answer{w.Code, w.Header(), w.Body.String()}
}

// maxPatching is far longer than a patch of maxPatch bytes takes.
const (
	maxPatching = 10 * time.Second
	maxPatch    = 1 << 10
)

// FuzzPatches sends arbitrary patches of each kind. The answers must equal upstream's, come
// soon, and not contain a disproportionately large object.
func FuzzPatches(f *testing.F) {
	types := []string{
		"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
		"application/apply-patch+yaml", "application/apply-patch+cbor", "application/json",
	}
	for i, patches := range [][]string{
		{
			`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"copy","from":"/metadata/labels/a","path":"/metadata/labels/c"}]`,
			`[{"op":"test","path":"/metadata/name","value":"q"}]`, `[{"op":"move","from":"/metadata","path":"/metadata/labels"}]`,
			`[{"op":"remove","path":"/metadata/name"}]`, `[{"op":"replace","path":"","value":null}]`, `[{"op":"add","path":"/spec/~1~0/-","value":1e999}]`, `null`, `{}`,
			`[{"op":"add","path":"/metadata/annotations","value":{"a":"xxxxxxxx"}},{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/b"}]`,
		},
		{`{"metadata":{"labels":{"a":null,"b":"c"}},"spec":{"unknown":[1,{}]}}`, `[]`, `{"metadata":null}`, `{"metadata":{"name":"q"}}`, `{"kind":"Other"}`, `{"a":1,"a":2}`},
		{`{"spec":{"containers":[{"$patch":"replace"}]}}`, `{"$setElementOrder/x":[]}`, `{"metadata":{"$retainKeys":["name"]}}`, `{"metadata":{"finalizers":["a"],"$deleteFromPrimitiveList/finalizers":["b"]}}`, `{"$patch":"delete"}`},
		{"apiVersion: example.apiserver.k8s.io/v1\nkind: Pod\nmetadata: {name: p, labels: {a: b}}\n", "&a [*a,*a]", "a: &b {c: *b}", "---\n---\n"},
		{"\xd9\xd9\xf7\xa0", "\x9f\x9f\x9f"},
		{`{}`},
	} {
		for _, patch := range patches {
			f.Add(uint8(i), patch, "p")
		}
	}
	storage := storages()
	ours, theirs := withServerContext(installed(f, examplev1.SchemeGroupVersion, storage)), upstream(f, examplev1.SchemeGroupVersion, storage)
	f.Fuzz(func(t *testing.T, kind uint8, patch, manager string) {
		query := url.Values{"fieldManager": {manager}, "fieldValidation": {"Warn"}}
		c := call{
			method: http.MethodPatch, path: root + "/namespaces/x/pods/p?" + query.Encode(), body: patch,
			header: map[string]string{"Content-Type": types[int(kind)%len(types)]},
		}
		began := time.Now()
		got := c.answered(ours)
		if took := time.Since(began); took > maxPatching {
			t.Errorf("%d bytes take %s", len(patch), took)
		}
		// The table limits the size of a patch, and each operation of a JSON patch may copy
		// the whole object once.
		if len(patch) <= maxPatch && len(got.Body) > 64*maxPatch {
			t.Errorf("%d bytes make an answer of %d", len(patch), len(got.Body))
		}
		if diff := cmp.Diff(c.answered(theirs), got); diff != "" {
			t.Errorf("%s of %q (-k8s.io/apiserver +ours):\n%s", c, patch, diff)
		}
	})
}
