package filters

import (
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/tracing"
)

// TestOnlyTheOwnerAuthorizesAndAudits is the purpose of the package.
func TestOnlyTheOwnerAuthorizesAndAudits(t *testing.T) {
	tests := map[string]struct {
		request *http.Request
		code    int
		want    log
	}{
		"owned": {newRequest("GET", "/api/v1/namespaces/x/pods/p", "Authorization: ann"), 200, log{
			Authorized: []string{"ann get x:pods::p"},
			Audited:    []string{"ResponseComplete ann /api/v1/namespaces/x/pods/p"},
			Served:     []string{"ann get:x:pods::p /api/v1/namespaces/x/pods/p "},
		}},
		"not owned": {newRequest("GET", "/apis/g/v1/namespaces/x/things/t", "Authorization: ann"), 200, log{
			Passed: []string{"ann get:x:things::t /apis/g/v1/namespaces/x/things/t "},
		}},
		"not owned, by a user without permission": {newRequest("DELETE", "/apis/g/v1/things/t", "Authorization: mallory"), 200, log{
			Passed: []string{"mallory delete::things::t /apis/g/v1/things/t "},
		}},
		"owned, by a user without permission": {newRequest("DELETE", "/api/v1/nodes/n", "Authorization: mallory"), 403, log{
			Authorized: []string{"mallory delete :nodes::n"},
			Audited:    []string{"ResponseComplete mallory /api/v1/nodes/n"},
		}},
		"owned, by nobody": {newRequest("GET", "/api/v1/nodes/n"), 401, log{
			Audited: []string{"ResponseStarted  /api/v1/nodes/n"},
		}},
		"not owned, by nobody": {newRequest("GET", "/apis/g/v1/things"), 401, log{
			Audited: []string{"ResponseStarted  /apis/g/v1/things"},
		}},
		"impersonation of an owned request": {newRequest("GET", "/api/v1/nodes/n", "Authorization: ann", "Impersonate-User: bob"), 200, log{
			// KEP-5284: may ann do this as another user, and may she impersonate bob?
			Authorized: []string{"ann impersonate-on:user-info:get :nodes::n", "ann impersonate:user-info :users::bob", "bob get :nodes::n"},
			Audited:    []string{"ResponseComplete ann /api/v1/nodes/n"},
			Served:     []string{"bob get::nodes::n /api/v1/nodes/n "},
		}},
		"impersonation of a request that is not owned": {newRequest("GET", "/apis/g/v1/things", "Authorization: ann", "Impersonate-User: bob", "Impersonate-Group: g"), 200, log{
			Passed: []string{"ann list::things:: /apis/g/v1/things Impersonate-Group,Impersonate-User"},
		}},
		"impersonation that is not allowed": {newRequest("GET", "/api/v1/nodes/n", "Authorization: mallory", "Impersonate-User: bob"), 403, log{
			// Then legacy impersonation is tried, which would allow everything as bob.
			Authorized: []string{"mallory impersonate-on:user-info:get :nodes::n", "mallory impersonate :users::bob"},
			Audited:    []string{"ResponseComplete mallory /api/v1/nodes/n"},
		}},
		"identity headers of an owned request": {newRequest("GET", "/api/v1/nodes", "Authorization: ann",
			"X-Remote-User: root", "X-Remote-Group: system:masters", "X-Remote-Extra-A: b", "X-Remote-Uid: 0",
			"X-Proxied-User: root", "X-Proxied-Group: system:masters", "X-Proxied-Extra-A: b", "X-Other: stays"), 200, log{
			Authorized: []string{"ann list :nodes::"},
			Audited:    []string{"ResponseComplete ann /api/v1/nodes"},
			Served:     []string{"ann list::nodes:: /api/v1/nodes X-Other"},
		}},
		"identity headers of a request that is passed on": {newRequest("GET", "/apis/g/v1/things", "Authorization: ann",
			"X-Remote-User: root", "X-Remote-Group: system:masters", "X-Remote-Extra-A: b", "X-Remote-Uid: 0",
			"X-Proxied-User: root", "X-Proxied-Group: system:masters", "X-Proxied-Extra-A: b"), 200, log{
			Passed: []string{"ann list::things:: /apis/g/v1/things "},
		}},
		// Authorization and handlers use the decoded path.
		"encoded slash in a name": {newRequest("GET", "/api/v1/nodes/a%2Fstatus", "Authorization: ann"), 200, log{
			Authorized: []string{"ann get :nodes:status:a"},
			Audited:    []string{"ResponseComplete ann /api/v1/nodes/a%2Fstatus"},
			Served:     []string{"ann get::nodes:status:a /api/v1/nodes/a/status "},
		}},
		"encoded slash in an owned prefix": {newRequest("GET", "/api%2Fv1/secrets", "Authorization: ann"), 200, log{
			Authorized: []string{"ann list :secrets::"},
			Audited:    []string{"ResponseComplete ann /api%2Fv1/secrets"},
			Served:     []string{"ann list::secrets:: /api/v1/secrets "},
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x := newTier(t, nil)
			w := do(x.Edge, test.request)
			if w.Code != test.code {
				t.Errorf("code %d, want %d: %s", w.Code, test.code, w.Body)
			}
			if diff := cmp.Diff(test.want, x.log()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if w.Header().Get("Audit-Id") == "" {
				t.Error("no Audit-Id in the answer")
			}
		})
	}
}

// TestDelegatedBeginsAtOwnership: the tier in front in the same process has already
// authenticated the request.
func TestDelegatedBeginsAtOwnership(t *testing.T) {
	x := newTier(t, func(c *Config) {
		c.Generic.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			t.Error("the authenticator is called")
			return nil, false, nil
		})
	})
	for _, path := range []string{"/api/v1/nodes/n", "/apis/g/v1/things/t"} {
		req := newRequest("GET", path)
		info, err := x.generic.RequestInfoResolver.NewRequestInfo(req)
		if err != nil {
			t.Fatal(err)
		}
		ctx := request.WithRequestInfo(audit.WithAuditContext(req.Context()), info)
		do(x.Delegated, req.WithContext(request.WithUser(ctx, &user.DefaultInfo{Name: "ann"})))
	}
	want := log{
		Authorized: []string{"ann get :nodes::n"},
		Audited:    []string{"ResponseComplete ann /api/v1/nodes/n"},
		Served:     []string{"ann get::nodes::n /api/v1/nodes/n "},
		Passed:     []string{"ann get::things::t /apis/g/v1/things/t "},
	}
	if diff := cmp.Diff(want, x.log()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTailOwnsEverything(t *testing.T) {
	x := newTier(t, func(c *Config) { c.Owns, c.Next = nil, nil })
	do(x.Edge, newRequest("GET", "/nowhere", "Authorization: ann"))
	if got := x.log(); len(got.Served) != 1 || len(got.Authorized) != 1 {
		t.Errorf("got %+v", got)
	}
}

// TestNextDoesNotUseUpTheLimit: the tier that serves a request limits it, not a tier that
// passes it on.
func TestNextDoesNotUseUpTheLimit(t *testing.T) {
	x := newTier(t, func(c *Config) { c.Generic.MaxMutatingRequestsInFlight = 1 })
	entered, leave := make(chan struct{}), make(chan struct{})
	x.serve = func(http.ResponseWriter, *http.Request) { close(entered); <-leave }
	x.next = func(http.ResponseWriter, *http.Request) {}
	var wait sync.WaitGroup
	wait.Go(func() { do(x.Edge, newRequest("POST", "/api/v1/nodes", "Authorization: ann")) })
	<-entered
	if w := do(x.Edge, newRequest("POST", "/api/v1/nodes", "Authorization: ann")); w.Code != http.StatusTooManyRequests {
		t.Errorf("a second owned request: %d, want 429", w.Code)
	}
	for range 3 {
		if w := do(x.Edge, newRequest("POST", "/apis/g/v1/things", "Authorization: ann")); w.Code != http.StatusOK {
			t.Errorf("a request that is not ours: %d", w.Code)
		}
	}
	close(leave)
	wait.Wait()
}

// TestPanicEndsItsRequestOnly: as in kube-apiserver, the panic reaches net/http, which
// closes the connection or, with HTTP/2, resets the stream.
func TestPanicEndsItsRequestOnly(t *testing.T) {
	x := newTier(t, nil)
	panics := func(http.ResponseWriter, *http.Request) { panic("oh") }
	works := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fine") }
	server := httptest.NewUnstartedServer(x.Edge)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	get := func(path string) (*http.Response, error) {
		req, err := http.NewRequest("GET", server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "ann")
		res, err := server.Client().Do(req)
		if err == nil {
			res.Body.Close()
		}
		return res, err
	}
	for _, path := range []string{"/api/v1/nodes", "/apis/g/v1/things"} {
		x.serve, x.next = panics, panics
		if res, err := get(path); err == nil && res.StatusCode != http.StatusInternalServerError {
			t.Errorf("%s: status %d for a panic", path, res.StatusCode)
		}
		x.serve, x.next = works, works
		if res, err := get(path); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%s after a panic: %v, %v", path, res, err)
		}
	}
	want := []string{"Panic ann /api/v1/nodes", "ResponseComplete ann /api/v1/nodes"}
	if diff := cmp.Diff(want, x.log().Audited); diff != "" {
		t.Errorf("audited (-want +got):\n%s", diff)
	}
}

// TestUnknownPathsAreMarkedUntilAllAreKnown: until the tier knows all its paths, the context
// of a request says so.
func TestUnknownPathsAreMarkedUntilAllAreKnown(t *testing.T) {
	x := newTier(t, nil)
	var known bool
	x.serve = func(_ http.ResponseWriter, req *http.Request) {
		known = filters.NoMuxAndDiscoveryIncompleteKey(req.Context())
	}
	enter := func() {
		do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann"))
	}
	if enter(); known {
		t.Error("not marked before all paths are known")
	}
	close(x.mux)
	if enter(); !known {
		t.Error("marked although all paths are known")
	}
}

// TestTraceContextIsHandedOn although traces go nowhere: servers that the handler calls may
// record them.
func TestTraceContextIsHandedOn(t *testing.T) {
	x := newTier(t, nil)
	handedOn := propagation.MapCarrier{}
	x.serve = func(_ http.ResponseWriter, req *http.Request) { tracing.Propagators().Inject(req.Context(), handedOn) }
	do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann"))
	if len(handedOn) > 0 {
		t.Errorf("a trace context without one in the request: %v", handedOn)
	}
	do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann", "Baggage: a=b"))
	if got := handedOn["baggage"]; got != "a=b" {
		t.Errorf("propagated %q, want the request's baggage", handedOn)
	}
}

// TestAudiences: the authenticator receives the audiences of the server, and a token for
// other audiences does not authenticate.
func TestAudiences(t *testing.T) {
	ours := authenticator.Audiences{"a", "b"}
	for _, tc := range []struct {
		name string
		ours authenticator.Audiences
		of   authenticator.Audiences
		code int
	}{
		{"one of ours", ours, authenticator.Audiences{"c", "b"}, http.StatusOK},
		{"others", ours, authenticator.Audiences{"c"}, http.StatusUnauthorized},
		{"none", ours, nil, http.StatusOK},
		{"the server has none", nil, authenticator.Audiences{"c"}, http.StatusOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newTier(t, func(c *Config) {
				c.Generic.Authentication.APIAudiences = tc.ours
				c.Generic.Authentication.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
					if audiences, _ := authenticator.AudiencesFrom(req.Context()); !slices.Equal(audiences, tc.ours) {
						t.Errorf("audiences %v, want %v", audiences, tc.ours)
					}
					resp, ok, err := authenticate(req)
					resp.Audiences = tc.of
					return resp, ok, err
				})
			})
			if w := do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann")); w.Code != tc.code {
				t.Errorf("%d, want %d", w.Code, tc.code)
			}
		})
	}
}
