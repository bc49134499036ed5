package resources

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// upstream serves storages with k8s.io/apiserver's own installer and router, as
// kube-apiserver does.
func upstream(t testing.TB, gv schema.GroupVersion, storage map[string]rest.Storage) http.Handler {
	t.Helper()
	info := groupInfo(gv, storage)
	handler := genericapiserver.NewAPIServerHandler("upstream", codecs, func(h http.Handler) http.Handler { return h }, http.NotFoundHandler())
	version := endpoints.APIGroupVersion{
		Storage: storage, Root: GroupPrefix, GroupVersion: gv,
		OptionsExternalVersion: info.OptionsExternalVersion, MetaGroupVersion: info.MetaGroupVersion,
		Serializer: info.NegotiatedSerializer, ParameterCodec: info.ParameterCodec,
		Typer: scheme, Creater: scheme, Convertor: scheme, ConvertabilityChecker: scheme, Defaulter: scheme,
		Namer: runtime.Namer(meta.NewAccessor()), UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
		TypeConverter:              managedfields.NewDeducedTypeConverter(),
		EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
		Authorizer:                 authorizerfactory.NewAlwaysAllowAuthorizer(),
		MinRequestTimeout:          time.Minute,
		MaxRequestBodyBytes:        1 << 10,
	}
	if _, _, err := version.InstallREST(handler.GoRestfulContainer); err != nil {
		t.Fatal(err)
	}
	return withServerContext(handler)
}

// withServerContext adds the context of a server to requests: request info, a user, an audit
// context, and a recorder of warnings.
func withServerContext(handler http.Handler) http.Handler {
	withUser := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := request.WithUser(req.Context(), &user.DefaultInfo{Name: "ann"})
		handler.ServeHTTP(w, req.WithContext(ctx))
	})
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	return filters.WithAuditInit(filters.WithWarningRecorder(filters.WithRequestInfo(withUser, resolver)))
}

// answer is the response that a client receives.
type answer struct {
	Code   int
	Header http.Header
	Body   string
}

// connection is a recorder that also implements http.CloseNotifier, for watches.
type connection struct{ *httptest.ResponseRecorder }

func (connection) CloseNotify() <-chan bool { return nil }

type call struct {
	method, path string
	header       map[string]string
	body         string
}

func (c call) to(handler http.Handler) answer {
	var body io.Reader
	if c.body != "" {
		body = strings.NewReader(c.body)
	}
	req := httptest.NewRequest(c.method, c.path, body)
	for key, value := range c.header {
		req.Header.Set(key, value)
	}
	req.Header.Set("Audit-Id", "1") // otherwise it is random
	w := connection{httptest.NewRecorder()}
	handler.ServeHTTP(w, req)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func (c call) String() string {
	var text strings.Builder
	text.WriteString(c.method + " " + c.path)
	for key, value := range c.header {
		text.WriteString(" " + key + "=" + value)
	}
	return text.String()
}

const root = "/apis/example.apiserver.k8s.io/v1"

// compare compares the answers of both to the same call.
func compare(t *testing.T, ours, theirs http.Handler, c call) {
	t.Helper()
	if diff := cmp.Diff(c.to(theirs), c.to(ours)); diff != "" {
		t.Errorf("%s (-k8s.io/apiserver +ours):\n%s", c, diff)
	}
}

func TestEveryMethodOnEveryPathAnswersAsUpstream(t *testing.T) {
	storage := storages()
	ours := withServerContext(installed(t, examplev1.SchemeGroupVersion, storage))
	theirs := upstream(t, examplev1.SchemeGroupVersion, storage)
	paths := []string{
		// collections
		"/pods", "/namespaces/x/pods", "/nodes", "/namespaces", "/componentstatuses",
		// items
		"/namespaces/x/pods/p", "/nodes/n", "/namespaces/x", "/componentstatuses/c",
		// subresources
		"/namespaces/x/pods/p/status", "/namespaces/x/pods/p/binding", "/namespaces/x/pods/p/log",
		"/namespaces/x/pods/p/attach", "/namespaces/x/pods/p/proxy", "/namespaces/x/pods/p/proxy/",
		"/namespaces/x/pods/p/proxy/a/b", "/nodes/n/proxy", "/nodes/n/proxy/a%2Fb",
		"/namespaces/x/status", "/namespaces/x/finalize",
		// the deprecated watch paths
		"/watch/pods", "/watch/namespaces/x/pods", "/watch/namespaces/x/pods/p", "/watch/nodes", "/watch/nodes/n",
		"/watch/namespaces", "/watch/namespaces/x", "/watch/componentstatuses", "/watch/namespaces/x/pods/p/status",
		// what does not exist
		"/gizmos", "/gizmos/g", "/namespaces/x/gizmos", "/namespaces/x/gizmos/g", "/namespaces/x/pods/p/gizmos",
		"/namespaces/x/pods/p/status/more", "/namespaces/x/pods/p/log/more", "/namespaces/x/pods/p/attach/more",
		"/pods/p", "/pods/p/status", "/namespaces/x/nodes", "/namespaces/x/nodes/n", "/nodes/n/status",
		"/watch", "/watch/gizmos", "/watch/watch/pods", "/watch/nodes/n/proxy",
		// names with an encoded slash, and slashes too many
		"/nodes/a%2Fb", "/nodes/a%2Fproxy", "/namespaces/x%2Fpods", "/namespaces/x/pods/a%2Fb", "/namespaces/x/pods/a%2Fstatus",
		"/nodes/", "/nodes/n/", "/namespaces/x/pods/p/", "/namespaces/x/pods/p//", "/nodes//",
		"//nodes", "/namespaces//pods", "/namespaces//pods/p", "/namespaces/x//pods", "/namespaces/x/pods//status",
		"/nodes//proxy", "/nodes//proxy/a", "/namespaces/x/pods/p//status", "/namespaces//finalize", "/watch//nodes",
		"/namespaces/x/pods/p/proxy//a", "/nodes/n/proxy//", "/namespaces/x/pods//", "/watch/namespaces//pods",
	}
	bodies := map[string]call{
		http.MethodPost: {header: map[string]string{"Content-Type": "application/json"},
			body: `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p"}}`},
		http.MethodPut: {header: map[string]string{"Content-Type": "application/json"},
			body: `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p","resourceVersion":"7"},"status":{"phase":"Running"}}`},
		http.MethodPatch: {header: map[string]string{"Content-Type": "application/merge-patch+json"},
			body: `{"metadata":{"labels":{"a":"b"}}}`},
	}
	for _, path := range paths {
		for _, method := range append(allMethods, "BREW") {
			c := bodies[method]
			c.method, c.path = method, root+path
			compare(t, ours, theirs, c)
		}
	}
}

func TestMediaTypesAreNegotiatedAsUpstream(t *testing.T) {
	storage := storages()
	ours := withServerContext(installed(t, examplev1.SchemeGroupVersion, storage))
	theirs := upstream(t, examplev1.SchemeGroupVersion, storage)
	accepts := []string{
		"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*", "application/*", "text/*",
		"text/plain", "text/html", "text/html, application/json;q=0.5", "application/json;as=Table;g=meta.k8s.io;v=v1",
		"application/json;as=Gizmo;g=meta.k8s.io;v=v1", "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch",
		"application/json;q=0", "application/json; charset=utf-8", " application/json ", ",", ";", "application/json,", "APPLICATION/JSON", "*", "image/png;q=0.1,*/*;q=0.1",
	}
	for _, accept := range accepts {
		for _, c := range []call{
			{method: http.MethodGet, path: "/nodes"},
			{method: http.MethodGet, path: "/nodes?watch=true"},
			{method: http.MethodGet, path: "/nodes/n"},
			{method: http.MethodGet, path: "/watch/nodes"},
			{method: http.MethodGet, path: "/namespaces/x/pods/p/log"},
			{method: http.MethodGet, path: "/namespaces/x/pods/p/proxy/a"},
			{method: http.MethodDelete, path: "/nodes/n"},
			{method: http.MethodGet, path: "/gizmos"},
			{method: http.MethodPut, path: "/nodes"},
		} {
			c.path, c.header = root+c.path, map[string]string{"Accept": accept}
			compare(t, ours, theirs, c)
		}
	}
	pod := `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p"}}`
	contentTypes := []string{
		"", "application/json", "application/json; charset=utf-8", "application/yaml", "text/plain", "text/html", "*/*", "application/merge-patch+json",
		"application/strategic-merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml", "application/apply-patch+cbor",
		"application/merge-patch+json;charset=utf-8", "application/json, application/merge-patch+json", "APPLICATION/MERGE-PATCH+JSON", ";", ",", "a b",
	}
	for _, contentType := range contentTypes {
		for _, c := range []call{
			{method: http.MethodPost, path: "/nodes", body: pod},
			{method: http.MethodPut, path: "/nodes/p", body: pod},
			{method: http.MethodPatch, path: "/nodes/p", body: `{"metadata":{"labels":{"a":"b"}}}`},
			{method: http.MethodPatch, path: "/nodes/p", body: `[]`},
			{method: http.MethodPatch, path: "/nodes/p"},
			{method: http.MethodDelete, path: "/nodes/n", body: `{}`},
			{method: http.MethodDelete, path: "/nodes/n"},
			{method: http.MethodPost, path: "/nodes/n/proxy", body: "x"},
		} {
			c.path = root + c.path
			if contentType != "" {
				c.header = map[string]string{"Content-Type": contentType}
			}
			compare(t, ours, theirs, c)
		}
	}
}

func TestBodiesAreRefusedAsUpstream(t *testing.T) {
	storage := storages()
	ours := withServerContext(installed(t, examplev1.SchemeGroupVersion, storage))
	theirs := upstream(t, examplev1.SchemeGroupVersion, storage)
	bodies := map[string]string{
		"empty":         "",
		"not JSON":      "{",
		"null":          "null",
		"a list":        "[]",
		"wrong type":    `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":1}}`,
		"wrong kind":    `{"kind":"Gizmo","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p"}}`,
		"wrong version": `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v9","metadata":{"name":"p"}}`,
		"wrong name":    `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"q"}}`,
		"twice a key":   `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p","name":"p"}}`,
		"unknown field": `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p"},"gizmo":1}`,
		"too long":      `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p","labels":{"a":"` + strings.Repeat("x", 2<<10) + `"}}}`,
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			for _, query := range []string{"", "?fieldValidation=Strict", "?fieldValidation=Warn", "?dryRun=All", "?dryRun=Some"} {
				for method, path := range map[string]string{
					http.MethodPost: "/nodes", http.MethodPut: "/nodes/p", http.MethodPatch: "/nodes/p", http.MethodDelete: "/nodes/p",
				} {
					c := call{method: method, path: root + path + query, body: body, header: map[string]string{"Content-Type": "application/json"}}
					if method == http.MethodPatch {
						c.header["Content-Type"] = "application/merge-patch+json"
					}
					compare(t, ours, theirs, c)
				}
			}
		})
	}
}

// TestRefusalsAreStatuses checks some answers against literals, so that a change of the
// router's library does not change them unnoticed.
func TestRefusalsAreStatuses(t *testing.T) {
	handler := withServerContext(installed(t, examplev1.SchemeGroupVersion, storages()))
	tests := map[string]struct {
		call    call
		code    int32
		reason  metav1.StatusReason
		message string
	}{
		"unknown resource of an owned group-version": {
			call{method: http.MethodGet, path: "/gizmos"}, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource"},
		"wrong method on an owned path": {
			call{method: http.MethodPut, path: "/nodes"}, 405, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource"},
		"subresource that takes no such method": {
			call{method: http.MethodDelete, path: "/namespaces/x/finalize"}, 405, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource"},
		"patch of an invalid type": {
			call{method: http.MethodPatch, path: "/nodes/n", header: map[string]string{"Content-Type": "application/json"}},
			415, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type"},
		"no representation": {
			call{method: http.MethodGet, path: "/nodes/n", header: map[string]string{"Accept": "image/png"}},
			406, metav1.StatusReasonNotAcceptable, "application/json, application/yaml, application/vnd.kubernetes.protobuf"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.call.path = root + test.call.path
			got := test.call.to(handler)
			var status metav1.Status
			if err := json.Unmarshal([]byte(got.Body), &status); err != nil {
				t.Fatalf("%v in %q", err, got.Body)
			}
			if status.Code != test.code || int32(got.Code) != test.code || status.Reason != test.reason || !strings.Contains(status.Message, test.message) {
				t.Errorf("got %d %+v, want %d %s with %q", got.Code, status, test.code, test.reason, test.message)
			}
		})
	}
}

func TestDeprecatedVersionWarns(t *testing.T) {
	storage := map[string]rest.Storage{"gadgets": gadgets{named{"gadget", false}}}
	ours := withServerContext(installed(t, oldGroup, storage))
	theirs := upstream(t, oldGroup, storage)
	for _, c := range []call{
		{method: http.MethodGet, path: "/apis/old.example.com/v1/gadgets/g"},
		{method: http.MethodDelete, path: "/apis/old.example.com/v1/gadgets/g"},
	} {
		compare(t, ours, theirs, c)
	}
	got := call{method: http.MethodGet, path: "/apis/old.example.com/v1/gadgets/g"}.to(ours)
	want := `299 - "old.example.com/v1 Gadget is deprecated in v1.2+, unavailable in v2.0+; use old.example.com/v2 Gadget"`
	if diff := cmp.Diff([]string{want}, got.Header["Warning"]); diff != "" {
		t.Error(diff)
	}
}

// depth is an admission plugin that records the depth of its call stack.
type depth struct{ calls int }

func (*depth) Handles(admission.Operation) bool { return true }

func (d *depth) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	var callers [2048]uintptr
	d.calls = goruntime.Callers(0, callers[:])
	return nil
}

// TestWritesDoNotGrow: a write handler of k8s.io/apiserver wraps its admission at every
// request. If it were reused, the call stack would grow with each write.
func TestWritesDoNotGrow(t *testing.T) {
	admit := &depth{}
	table := newTable()
	table.config.Admission = admit
	if err := table.Install(GroupPrefix, groupInfo(examplev1.SchemeGroupVersion, storages())); err != nil {
		t.Fatal(err)
	}
	version, _ := table.Version(root)
	handler := withServerContext(version)
	create := call{method: http.MethodPost, path: root + "/namespaces/x/pods", header: map[string]string{"Content-Type": "application/json"},
		body: `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p"}}`}
	write := func() int {
		if a := create.to(handler); a.Code >= 300 {
			t.Fatalf("%s: %d %s", create, a.Code, a.Body)
		}
		return admit.calls
	}
	first := write()
	for range 100 {
		write()
	}
	if later := write(); first == 0 || later != first {
		t.Errorf("admission is %d calls deep at first, %d after 100 writes", first, later)
	}
}
