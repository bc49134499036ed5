package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	proxymetrics "k8s.io/apiserver/pkg/util/proxy/metrics"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// prepare prepares a server and declares all its paths as known.
func prepare(s *Server) http.Handler {
	s.Prepare()
	close(s.lifecycle.muxComplete)
	return s.Handler()
}

// withNext adds a next tier that records its requests and answers 404.
func withNext(passed *[]string) func(*Config) {
	return func(c *Config) {
		c.Next = &Next{Tier: "behind", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			*passed = append(*passed, req.Method+" "+req.URL.EscapedPath())
			http.NotFound(w, req)
		})}
	}
}

// TestOwnedRequestsAreNotPassedOn, even with a wrong method on an owned path, or for an
// unknown resource of an owned group-version.
func TestOwnedRequestsAreNotPassedOn(t *testing.T) {
	var passed []string
	s := newServer(t, withNext(&passed))
	if err := s.Install(groupInfo(newPods())); err != nil {
		t.Fatal(err)
	}
	h := prepare(s)
	const root = "/apis/" + group
	tests := map[string]struct {
		method, path string
		code         int
		reason       metav1.StatusReason
	}{
		"unknown resource":                  {"GET", root + "/v1/gizmos", 404, metav1.StatusReasonNotFound},
		"unknown resource, unknown method":  {"BREW", root + "/v1/gizmos", 404, metav1.StatusReasonNotFound},
		"unknown subresource":               {"GET", root + "/v1/namespaces/x/pods/p/gizmo", 404, metav1.StatusReasonNotFound},
		"encoded slash in a name":           {"GET", root + "/v1/namespaces/x/pods/p%2Fgizmo", 404, metav1.StatusReasonNotFound},
		"encoded slash in the group":        {"GET", "/apis%2F" + group + "/v1/gizmos", 404, metav1.StatusReasonNotFound},
		"method that a resource lacks":      {"DELETE", root + "/v1/namespaces/x/pods/p", 405, metav1.StatusReasonMethodNotAllowed},
		"unknown method on a resource":      {"BREW", root + "/v1/pods", 405, metav1.StatusReasonMethodNotAllowed},
		"POST on the group-version":         {"POST", root + "/v1", 405, metav1.StatusReasonMethodNotAllowed},
		"DELETE on the group":               {"DELETE", root, 405, metav1.StatusReasonMethodNotAllowed},
		"PUT on the groups":                 {"PUT", "/apis", 405, metav1.StatusReasonMethodNotAllowed},
		"PATCH on the groups, with a slash": {"PATCH", "/apis/", 405, metav1.StatusReasonMethodNotAllowed},
		"unknown method on the groups":      {"BREW", "/apis", 405, metav1.StatusReasonMethodNotAllowed},
		"POST on the version":               {"POST", "/version", 405, metav1.StatusReasonMethodNotAllowed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := do(h, test.method, test.path)
			status := decodeStatus(t, w)
			if w.Code != test.code || status.Reason != test.reason {
				t.Errorf("%d %+v, want %d %s", w.Code, status, test.code, test.reason)
			}
		})
	}
	if len(passed) != 0 {
		t.Errorf("passed on: %v", passed)
	}
}

func TestOtherRequestsArePassedOn(t *testing.T) {
	var passed []string
	s := newServer(t, withNext(&passed))
	if err := s.Install(groupInfo(newPods())); err != nil {
		t.Fatal(err)
	}
	h := prepare(s)
	want := []string{
		"GET /nowhere", "POST /apis/other.example.com/v1/things", "GET /apis/" + group + "/v2/pods", "GET /apis/" + group + "/v10",
		"GET /version/x", "BREW /nowhere", "GET /apis/a%2Fb/v1/things", "GET /api", "GET /api/v1/pods", "GET //version",
	}
	for _, call := range want {
		method, path, _ := strings.Cut(call, " ")
		if w := do(h, method, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d, want the answer of the next tier", call, w.Code)
		}
	}
	if diff := cmp.Diff(want, passed); diff != "" {
		t.Errorf("passed on (-want +got):\n%s", diff)
	}
}

// TestTailAnswersUnknownPathsWithAStatus, and with 503 until all paths are known: a
// controller that receives 404 may delete objects that it should not.
func TestTailAnswersUnknownPathsWithAStatus(t *testing.T) {
	s := newServer(t, nil)
	known := make(chan struct{})
	s.AwaitPaths(known)
	listen(t, s.Generic())
	r := run(t, s)
	unknown := []string{"/nowhere", "/apis/other.example.com/v1/things", "/apis/other.example.com/v1/namespaces/x/things/a%2Fb", "//version"}
	for _, path := range unknown {
		status := decodeStatus(t, do(s.Handler(), "GET", path))
		if status.Code != http.StatusServiceUnavailable || status.Details == nil || status.Details.RetryAfterSeconds != 5 {
			t.Errorf("%s before all paths are known: %+v", path, status)
		}
	}
	if code, _ := r.get("/version"); code != http.StatusOK {
		t.Errorf("a known path before all are: %d", code)
	}
	close(known)
	await(t, "unknown paths are 404", func() bool { code, _ := r.get("/nowhere"); return code == http.StatusNotFound })
	for _, path := range unknown {
		status := decodeStatus(t, do(s.Handler(), "DELETE", path))
		if status.Reason != metav1.StatusReasonNotFound || status.Message != "the server could not find the requested resource" {
			t.Errorf("%s: %+v", path, status)
		}
	}
}

func TestNotFoundOfTheTier(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.NotFound = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	})
	if w := do(prepare(s), "GET", "/nowhere"); w.Code != http.StatusTeapot {
		t.Errorf("got %d", w.Code)
	}
}

// TestOwnsAddsPaths: a tier may own further paths while it runs.
func TestOwnsAddsPaths(t *testing.T) {
	var passed []string
	s := newServer(t, func(c *Config) {
		withNext(&passed)(c)
		c.Owns = func(path string) (http.Handler, bool) {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprint(w, "mine ", req.URL.Path) }),
				strings.HasPrefix(path, "/apis/remote.example.com/") || path == "/version"
		}
	})
	h := prepare(s)
	if w := do(h, "GET", "/apis/remote.example.com/v1/a%2Fb"); w.Body.String() != "mine /apis/remote.example.com/v1/a/b" {
		t.Errorf("got %q", w.Body)
	}
	if w := do(h, "GET", "/version"); !strings.Contains(w.Body.String(), "gitVersion") {
		t.Errorf("the tier's own route must take precedence; got %q", w.Body)
	}
	do(h, "GET", "/apis/other.example.com/v1")
	if diff := cmp.Diff([]string{"GET /apis/other.example.com/v1"}, passed); diff != "" {
		t.Error(diff)
	}
}

func TestIndexListsServedPaths(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.Generic.EnableProfiling, c.Generic.EnableMetrics = true, true
		c.Listed = func() []string { return []string{"/apis/remote.example.com", "/apis/" + group} }
	})
	if err := s.Install(groupInfo(newPods())); err != nil {
		t.Fatal(err)
	}
	h := prepare(s)
	for _, path := range []string{"/", "/index.html"} {
		w := do(h, "GET", path)
		var listed metav1.RootPaths
		if err := json.Unmarshal(w.Body.Bytes(), &listed); err != nil {
			t.Fatalf("%s: %v in %q", path, err, w.Body)
		}
		for _, want := range []string{"/apis", "/apis/" + group, "/apis/" + group + "/v1", "/apis/remote.example.com", "/healthz", "/healthz/ping", "/livez", "/readyz", "/readyz/shutdown", "/metrics", "/version"} {
			if !slices.Contains(listed.Paths, want) {
				t.Errorf("%s does not list %s: %v", path, want, listed.Paths)
			}
		}
		if !slices.IsSorted(listed.Paths) {
			t.Errorf("%s is not sorted: %v", path, listed.Paths)
		}
	}
	if w := do(h, "GET", "/debug/pprof/goroutine"); w.Code != http.StatusOK {
		t.Errorf("pprof: %d", w.Code)
	}
}

func TestMetricsAndProfilesCanBeOff(t *testing.T) {
	h := prepare(newServer(t, nil))
	for _, path := range []string{"/metrics", "/metrics/slis", "/debug/pprof", "/debug/pprof/heap"} {
		if w := do(h, "GET", path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestDiscoveryCanBeOff(t *testing.T) {
	s := newServer(t, func(c *Config) { c.Generic.EnableDiscovery = false })
	if w := do(prepare(s), "GET", "/apis"); w.Code != http.StatusNotFound {
		t.Errorf("/apis: %d", w.Code)
	}
}

// TestDocumentsAreNegotiated: like the router of kube-apiserver, the server refuses media
// types of a document before it considers quality values or wildcards.
func TestDocumentsAreNegotiated(t *testing.T) {
	s := newServer(t, nil)
	for _, info := range []*genericapiserver.APIGroupInfo{groupInfo(newPods()), newGroupInfo(schema.GroupVersion{Version: "v1"}, newPods())} {
		if err := s.Install(info); err != nil {
			t.Fatal(err)
		}
	}
	h := prepare(s)
	const root = "/apis/" + group
	const all = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf"
	const none = "415: Unsupported Media Type"
	tests := map[string]struct {
		path, name, value string
		message           string // of the 406 or 415
	}{
		"version":                     {"/version", "Accept", "application/json;q=0.1", ""},
		"version as anything":         {"/version", "Accept", "text/html, */*;q=0.8", ""},
		"version as text":             {"/version", "Accept", "text/plain", "406: Not Acceptable\n\nAvailable representations: application/json"},
		"version by a wildcard":       {"/version/", "Accept", "application/*", "406: Not Acceptable\n\nAvailable representations: application/json"},
		"version with JSON":           {"/version", "Content-Type", "application/json", ""},
		"version with text":           {"/version", "Content-Type", "text/plain", none},
		"legacy versions by wildcard": {"/api", "Accept", "application/*", all},
		"legacy versions with text":   {"/api/", "Content-Type", "text/plain", none},
		"group as text":               {root, "Accept", "text/plain", all},
		"group with YAML":             {root, "Content-Type", "application/yaml; charset=utf-8", ""},
		"group-version as text":       {root + "/v1", "Accept", "text/plain", all},
		"group-version with text":     {root + "/v1/", "Content-Type", "text/plain", none},
		"legacy group-version":        {"/api/v1", "Accept", ";;;", all},
		"groups with text":            {"/apis", "Content-Type", "text/plain", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := do(h, http.MethodGet, tt.path, tt.name+": "+tt.value)
			if tt.message == "" {
				if w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				return
			}
			status := decodeStatus(t, w)
			if status.Message != tt.message || w.Code != int(status.Code) || !strings.HasPrefix(status.Message, fmt.Sprint(w.Code)) {
				t.Errorf("%d %q, want %q", w.Code, status.Message, tt.message)
			}
		})
	}
}

// TestMetricsOfRequestBodies: the packages of these metrics do not register them by
// themselves.
func TestMetricsOfRequestBodies(t *testing.T) {
	s := newServer(t, func(c *Config) { c.Generic.EnableMetrics = true })
	h := prepare(s)
	handlersmetrics.RecordRequestBodySize(t.Context(), schema.GroupResource{Resource: "pods"}, handlersmetrics.Create, 17)
	proxymetrics.IncWebSocketStreamingRequest(t.Context(), "exec", "proxied_to_kubelet")
	page := do(h, http.MethodGet, "/metrics").Body.String()
	for _, name := range []string{"apiserver_request_body_size_bytes_sum", "apiserver_websocket_streaming_requests_total"} {
		if !strings.Contains(page, "\n"+name+"{") {
			t.Errorf("no %s", name)
		}
	}
}

// TestDocumentsInCBOR: the document of a group-version has the media types of its resources,
// also those behind a feature gate.
func TestDocumentsInCBOR(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	s := newServer(t, nil)
	for _, info := range []*genericapiserver.APIGroupInfo{groupInfo(newPods()), newGroupInfo(schema.GroupVersion{Version: "v1"}, newPods())} {
		if err := s.Install(info); err != nil {
			t.Fatal(err)
		}
	}
	h := prepare(s)
	w := do(h, http.MethodGet, "/apis/"+group+"/v1", "Accept: application/cbor")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/cbor" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := do(h, http.MethodGet, "/api/v1", "Accept: application/cbor"); w.Code != http.StatusNotAcceptable {
		t.Errorf("the legacy group-version: %d", w.Code)
	}
}
