package filters

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tier is a chain with everything that it calls. The filters are real; authorizer and
// audit backend only record their calls.
type tier struct {
	Handlers
	generic      *genericapiserver.Config
	mux, closing chan struct{}

	mu         sync.Mutex
	authorized []string
	audited    []string
	served     []string
	passed     []string
	// serve and next are called after a request has been recorded.
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

// Authorize allows everything to everybody except mallory.
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

// describe describes the request that a handler receives.
func describe(req *http.Request) string {
	user, info := "nobody", "no info"
	if u, ok := request.UserFrom(req.Context()); ok {
		user = u.GetName()
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
	return strings.Join([]string{user, info, req.URL.Path, strings.Join(headers, ",")}, " ")
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

// log records what has happened to all requests.
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

var (
	longRunningVerbs        = sets.NewString("watch", "proxy")
	longRunningSubresources = sets.NewString("attach", "exec", "proxy", "log", "portforward")
)
