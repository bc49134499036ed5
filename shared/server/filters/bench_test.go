package filters

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// sink is a ResponseWriter that discards the answer.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}

// bare builds a chain that authenticates and authorizes everything at no cost, to measure
// the filters by themselves. It stops with the test.
func bare(tb testing.TB, fair bool, serve http.HandlerFunc) Handlers {
	tb.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	g := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
	g.FeatureGate = utilfeature.DefaultFeatureGate
	g.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(g)
	g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(longRunningVerbs, longRunningSubresources)
	known := &authenticator.Response{User: &user.DefaultInfo{Name: "ann", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}
	g.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return known, true, nil })
	g.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	if fair {
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		g.FlowControl = utilflowcontrol.New(factory, client.FlowcontrolV1(), 600)
		ctx, cancel := context.WithCancel(tb.Context())
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = g.FlowControl.Run(ctx.Done()) }()
		tb.Cleanup(func() { cancel(); <-ended; factory.Shutdown() })
	}
	closed := make(chan struct{})
	close(closed)
	return Build(serve, Config{Generic: g, MuxComplete: closed, NotAccepting: make(chan struct{})})
}

// received returns a request as a server reads it from a connection.
func received(ctx context.Context, path, query string) *http.Request {
	uri := path
	if query != "" {
		uri += "?" + query
	}
	return (&http.Request{
		Method: http.MethodGet, Proto: "HTTP/2.0", ProtoMajor: 2, Host: "triune", RemoteAddr: "127.0.0.1:4000",
		URL: &url.URL{Path: path, RawQuery: query}, RequestURI: uri,
		Header: http.Header{"User-Agent": {"bench"}, "Accept": {"application/json"}},
	}).WithContext(ctx)
}

const onePod = "/api/v1/namespaces/default/pods/a"

// costs lists the two ways to limit requests, each with a bound of the allocations for a
// GET: a few more than the chain makes.
var costs = []struct {
	name        string
	fair        bool
	allocations float64
}{{"max in flight", false, 82}, {"priority and fairness", true, 134}}

// BenchmarkChain measures the filters around a handler that does nothing, for a GET of one
// object. Authentication and authorization are free; packages authn and authz measure
// them.
//
//	go test -run '^$' -bench Chain -cpuprofile cpu.out ./shared/server/filters
func BenchmarkChain(b *testing.B) {
	for _, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			handlers := bare(b, c.fair, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
			ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				handlers.Edge.ServeHTTP(&sink{header: http.Header{}}, received(ctx, onePod, ""))
			}
		})
	}
}

// TestAllocations bounds the allocations that BenchmarkChain reports.
func TestAllocations(t *testing.T) {
	for _, c := range costs {
		t.Run(c.name, func(t *testing.T) {
			handlers := bare(t, c.fair, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			allocations := testing.AllocsPerRun(500, func() {
				handlers.Edge.ServeHTTP(&sink{header: http.Header{}}, received(ctx, onePod, ""))
			})
			if allocations > c.allocations {
				t.Errorf("%v allocations for a GET, more than %v", allocations, c.allocations)
			}
		})
	}
}
