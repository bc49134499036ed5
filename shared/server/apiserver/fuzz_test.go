package apiserver

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/mux"
)

// tierPaths are the paths that each of three tiers serves, besides those that every tier
// does. A path that ends in /* is a prefix.
var tierPaths = map[string][]string{
	"aggregator": {
		"/apis", "/apis/", "/api", "/api/", "/openapi/v2", "/openapi/v3", "/openapi/v3/*",
		"/apis/apiregistration.k8s.io", "/apis/apiregistration.k8s.io/v1", "/apis/apiregistration.k8s.io/v1/*",
	},
	"core": {
		"/api/v1", "/api/v1/*", "/apis/apps", "/apis/apps/", "/apis/apps/v1", "/apis/apps/v1/*",
		"/apis/batch/v1/*", "/apis/batch/v1/exact", "/.well-known/openid-configuration", "/triune/settings",
	},
	"extensions": {"/apis/apiextensions.k8s.io/v1", "/apis/apiextensions.k8s.io/v1/*"},
}

// The aggregator comes to own these paths while it runs.
const remotePath, remotePrefix = "/apis/remote.example.com/v1", "/apis/remote.example.com/v1/"

func ownsRemote(path string) (http.Handler, bool) {
	return routedTo(remotePrefix), path == remotePath || strings.HasPrefix(path, remotePrefix)
}

func routedTo(route string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Route", route)
		w.WriteHeader(http.StatusOK)
	})
}

// FuzzOwners sends arbitrary request targets to three tiers, and to a chain of upstream's
// routers with the same paths. The same tier must answer, by the same route.
func FuzzOwners(f *testing.F) {
	for i, target := range []string{
		"/api/v1/namespaces/a/pods/b", "/api/v1", "/api/v1/", "/api//v1/x", "//api/v1", "/api/v1/../../apis/apps/v1/x", "/api%2Fv1%2Fpods", "/apis/apps%2Fv1/x",
		"/apis/apps/v1", "/apis/apps/v1/%2e%2e/x", "/apis/./apps/v1/x", "/apis/remote.example.com/v1/a%2Fb", "/apis/remote.example.com/v10/a", "/openapi/v3/apis/apps/v1",
		"http://other.example/api/v1/pods", "http://other.example", "*", "/apis/batch/v1/exact", "/apis/batch/v1/exact/", "/apis/batch/v1", "/version", "/version/x", "/version//", "/apis//", "/healthz/", "/",
		"/apis/:a/*", "/api/v1/*", "/api/v1/a?b=/apis/apps/v1", "/apis/apps/v1;a=b/x", "/API/v1/pods", "/triune/settings#x", "/api/v1\x00", "/é",
	} {
		f.Add(uint8(i), target)
	}
	var served string // the tier that authorized the request, which is its owner
	var next *Next
	reference := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Tier", "extensions") }))
	var ours http.Handler
	for _, tier := range []string{"extensions", "core", "aggregator"} {
		s := newServer(f, func(c *Config) {
			c.Tier, c.Next = tier, next
			if tier == "aggregator" {
				c.Owns = ownsRemote
			}
			c.Generic.Authorization.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				if served == "" { // the list of paths also asks the tiers behind
					served = tier
				}
				return authorizer.DecisionAllow, "", nil
			})
		})
		known := map[string]bool{}
		for _, path := range tierPaths[tier] {
			known[path] = true
			if prefix, ok := strings.CutSuffix(path, "*"); ok {
				s.UnlistedHandlePrefix(prefix, routedTo(path))
			} else {
				s.UnlistedHandle(path, routedTo(path))
			}
		}
		ours = prepare(s)
		router := mux.NewPathRecorderMux(tier)
		router.NotFoundHandler(reference)
		label := func(route string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Tier", tier)
				if known[route] || route == remotePrefix {
					w.Header().Set("Route", route)
				}
			})
		}
		for path := range s.paths.exact {
			router.Handle(path, label(path))
		}
		for _, prefix := range s.paths.prefixes {
			router.HandlePrefix(prefix, label(prefix+"*"))
		}
		if tier == "aggregator" {
			router.Handle(remotePath, label(remotePrefix))
			router.HandlePrefix(remotePrefix, label(remotePrefix))
		}
		reference = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			// In kube-apiserver these are routes of go-restful.
			if _, ok := s.paths.documents[strings.TrimRight(req.URL.Path, "/")]; ok {
				label("").ServeHTTP(w, req)
				return
			}
			router.ServeHTTP(w, req)
		})
		next = &Next{Tier: tier, Handler: s.Delegated()}
	}
	methods := []string{http.MethodGet, http.MethodPost, http.MethodOptions, "BREW"}
	f.Fuzz(func(t *testing.T, method uint8, target string) {
		read := func() *http.Request {
			text := methods[int(method)%len(methods)] + " " + target + " HTTP/1.1\r\nHost: example.com\r\n\r\n"
			req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
			if err != nil {
				return nil
			}
			return req
		}
		req := read()
		if req == nil {
			return
		}
		want, got := httptest.NewRecorder(), httptest.NewRecorder()
		reference.ServeHTTP(want, req)
		served = ""
		ours.ServeHTTP(got, read())
		if served != want.Header().Get("Tier") {
			t.Errorf("%s %q is served by %q, want %q", req.Method, target, served, want.Header().Get("Tier"))
		}
		if got.Header().Get("Route") != want.Header().Get("Route") {
			t.Errorf("%s %q takes route %q, want %q", req.Method, target, got.Header().Get("Route"), want.Header().Get("Route"))
		}
	})
}
