package filters

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tier is a chain with everything around it that it calls. The filters are real;
// authenticator, authorizer and audit log only remember what they were asked.
type tier struct {
	Handlers
	generic      *genericapiserver.Config
	mux, closing chan struct{}

	mu         sync.Mutex
	authorized []string
	audited    []string
	served     []string
	passed     []string
	// serve and next are called after a request has been noted.
	serve, next http.HandlerFunc
}

func newTier(t *testing.T, change func(*Config)) *tier {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	x := &tier{mux: make(chan struct{}), closing: make(chan struct{})}
	x.serve = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }
	x.next = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "passed on") }
	g := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
	g.FeatureGate = utilfeature.DefaultFeatureGate
	g.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(g)
	g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(longRunningVerbs, longRunningSubresources)
	g.Authentication.Authenticator = authenticator.RequestFunc(authenticate)
	g.Authentication.RequestHeaderConfig = &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{"X-Proxied-User"},
		GroupHeaders:        headerrequest.StaticStringSlice{"X-Proxied-Group"},
		UIDHeaders:          headerrequest.StaticStringSlice{"X-Proxied-Uid"},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Proxied-Extra-"},
	}
	g.Authorization.Authorizer = x
	g.AuditBackend = x
	g.AuditPolicyRuleEvaluator = policy.NewFakePolicyRuleEvaluator(auditinternal.LevelMetadata, []auditinternal.Stage{auditinternal.StageRequestReceived})
	x.generic = g
	c := Config{
		Generic:      g,
		Owns:         func(req *http.Request) bool { return strings.HasPrefix(req.URL.Path, "/api/") },
		Next:         http.HandlerFunc(x.passOn),
		MuxComplete:  x.mux,
		NotAccepting: x.closing,
	}
	if change != nil {
		change(&c)
	}
	x.Handlers = Build(http.HandlerFunc(x.answer), c)
	return x
}

// authenticate takes the Authorization header for the name of the user.
func authenticate(req *http.Request) (*authenticator.Response, bool, error) {
	switch name := req.Header.Get("Authorization"); name {
	case "":
		return nil, false, nil
	case "nobody":
		return nil, false, errors.New("unknown user")
	default:
		return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{"people"}}}, true, nil
	}
}

// Authorize allows everything but what mallory does.
func (x *tier) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	what := a.GetUser().GetName() + " " + a.GetVerb() + " "
	if a.IsResourceRequest() {
		what += strings.Join([]string{a.GetNamespace(), a.GetResource(), a.GetSubresource(), a.GetName()}, ":")
	} else {
		what += a.GetPath()
	}
	x.authorized = append(x.authorized, what)
	if a.GetUser().GetName() == "mallory" {
		return authorizer.DecisionDeny, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func (x *tier) ProcessEvents(events ...*auditinternal.Event) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, event := range events {
		x.audited = append(x.audited, fmt.Sprintf("%s %s %s", event.Stage, event.User.Username, event.RequestURI))
	}
	return true
}

func (*tier) Run(<-chan struct{}) error { return nil }
func (*tier) Shutdown()                 {}
func (*tier) String() string            { return "test" }

var _ audit.Backend = (*tier)(nil)

// describe says what arrives at a handler.
func describe(req *http.Request) string {
	who, info := "nobody", "no info"
	if u, ok := request.UserFrom(req.Context()); ok {
		who = u.GetName()
	}
	if i, ok := request.RequestInfoFrom(req.Context()); ok {
		info = strings.Join([]string{i.Verb, i.Namespace, i.Resource, i.Subresource, i.Name}, ":")
	}
	var headers []string
	for name := range req.Header {
		if name != "Audit-Id" {
			headers = append(headers, name)
		}
	}
	slices.Sort(headers)
	return strings.Join([]string{who, info, req.URL.Path, strings.Join(headers, ",")}, " ")
}

func (x *tier) answer(w http.ResponseWriter, req *http.Request) {
	x.mu.Lock()
	x.served = append(x.served, describe(req))
	x.mu.Unlock()
	x.serve(w, req)
}

func (x *tier) passOn(w http.ResponseWriter, req *http.Request) {
	x.mu.Lock()
	x.passed = append(x.passed, describe(req))
	x.mu.Unlock()
	x.next(w, req)
}

// log is what has happened to all requests so far.
type log struct{ Authorized, Audited, Served, Passed []string }

func (x *tier) log() log {
	x.mu.Lock()
	defer x.mu.Unlock()
	return log{slices.Clone(x.authorized), slices.Clone(x.audited), slices.Clone(x.served), slices.Clone(x.passed)}
}

func newRequest(method, target string, header ...string) *http.Request {
	req := httptest.NewRequest(method, target, nil)
	for _, pair := range header {
		name, value, _ := strings.Cut(pair, ": ")
		req.Header.Add(name, value)
	}
	return req
}

func do(h http.Handler, req *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// TestOnlyTheOwnerAuthorizesAndAudits is the point of the whole package.
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
		"not owned, by somebody who may not": {newRequest("DELETE", "/apis/g/v1/things/t", "Authorization: mallory"), 200, log{
			Passed: []string{"mallory delete::things::t /apis/g/v1/things/t "},
		}},
		"owned, by somebody who may not": {newRequest("DELETE", "/api/v1/nodes/n", "Authorization: mallory"), 403, log{
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
			// KEP-5284: may ann do this as another, and may she be bob?
			Authorized: []string{"ann impersonate-on:user-info:get :nodes::n", "ann impersonate:user-info :users::bob", "bob get :nodes::n"},
			Audited:    []string{"ResponseComplete ann /api/v1/nodes/n"},
			Served:     []string{"bob get::nodes::n /api/v1/nodes/n "},
		}},
		"impersonation is the owner's business": {newRequest("GET", "/apis/g/v1/things", "Authorization: ann", "Impersonate-User: bob", "Impersonate-Group: g"), 200, log{
			Passed: []string{"ann list::things:: /apis/g/v1/things Impersonate-Group,Impersonate-User"},
		}},
		"impersonation that is not allowed": {newRequest("GET", "/api/v1/nodes/n", "Authorization: mallory", "Impersonate-User: bob"), 403, log{
			// Then the older question, which allows everything as bob.
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
		// The decoded path decides, for whoever authorizes and whoever serves.
		"encoded slash in a name": {newRequest("GET", "/api/v1/nodes/a%2Fstatus", "Authorization: ann"), 200, log{
			Authorized: []string{"ann get :nodes:status:a"},
			Audited:    []string{"ResponseComplete ann /api/v1/nodes/a%2Fstatus"},
			Served:     []string{"ann get::nodes:status:a /api/v1/nodes/a/status "},
		}},
		"encoded slash in front of what is owned": {newRequest("GET", "/api%2Fv1/secrets", "Authorization: ann"), 200, log{
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

// TestDelegatedBeginsAtOwnership: the tier in front in the same process has
// authenticated already.
func TestDelegatedBeginsAtOwnership(t *testing.T) {
	x := newTier(t, func(c *Config) {
		c.Generic.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			t.Error("asked to authenticate")
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

// TestNextDoesNotUseUpTheLimit: requests that this tier only passes on are limited
// by the tier that serves them.
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

// TestPanicEndsItsRequestOnly: as in kube-apiserver, the panic goes on to net/http,
// which gives up the connection or, with HTTP/2, the stream.
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

// TestUnknownPathsAreMarkedUntilAllAreKnown, in whichever way the request came.
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

// TestTraceContextIsHandedOn although traces go nowhere: whom the handler calls
// may have a place for them.
func TestTraceContextIsHandedOn(t *testing.T) {
	x := newTier(t, nil)
	handedOn := propagation.MapCarrier{}
	x.serve = func(_ http.ResponseWriter, req *http.Request) { tracing.Propagators().Inject(req.Context(), handedOn) }
	do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann"))
	if len(handedOn) > 0 {
		t.Errorf("a trace out of nothing: %v", handedOn)
	}
	do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann", "Baggage: a=b"))
	if got := handedOn["baggage"]; got != "a=b" {
		t.Errorf("handed on %q, want the baggage that came", handedOn)
	}
}

// TestAudiences: an authenticator is told for whom tokens must be, and who has one for others
// is nobody.
func TestAudiences(t *testing.T) {
	ours := authenticator.Audiences{"a", "b"}
	for _, tc := range []struct {
		name string
		ours authenticator.Audiences
		of   authenticator.Audiences
		code int
	}{
		{"one of ours", ours, authenticator.Audiences{"c", "b"}, http.StatusOK},
		{"of others", ours, authenticator.Audiences{"c"}, http.StatusUnauthorized},
		{"of nobody in particular", ours, nil, http.StatusOK},
		{"any will do", nil, authenticator.Audiences{"c"}, http.StatusOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newTier(t, func(c *Config) {
				c.Generic.Authentication.APIAudiences = tc.ours
				c.Generic.Authentication.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
					if told, _ := authenticator.AudiencesFrom(req.Context()); !slices.Equal(told, tc.ours) {
						t.Errorf("told of %v, want %v", told, tc.ours)
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
