package chain

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

// sink is a ResponseWriter that keeps nothing.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}

// BenchmarkChain is what the filters cost around a handler that does nothing, for
// a GET of one object. Who asks and what they may do is known at once: these costs
// are those of the packages authn and authz.
//
//	go test -run '^$' -bench Chain -cpuprofile cpu.out ./shared/chain
func BenchmarkChain(b *testing.B) {
	for _, c := range []struct {
		name string
		fair bool
	}{{"max in flight", false}, {"priority and fairness", true}} {
		b.Run(c.name, func(b *testing.B) {
			scheme := runtime.NewScheme()
			metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
			g := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
			g.FeatureGate = utilfeature.DefaultFeatureGate
			g.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(g)
			g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(longRunningVerbs, longRunningSubresources)
			known := &authenticator.Response{User: &user.DefaultInfo{Name: "ann", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}
			g.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return known, true, nil })
			g.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
			if c.fair {
				client := fake.NewClientset()
				factory := informers.NewSharedInformerFactory(client, 0)
				g.FlowControl = utilflowcontrol.New(factory, client.FlowcontrolV1(), 600)
				ctx, cancel := context.WithCancel(b.Context())
				factory.Start(ctx.Done())
				factory.WaitForCacheSync(ctx.Done())
				ended := make(chan struct{})
				go func() { defer close(ended); _ = g.FlowControl.Run(ctx.Done()) }()
				b.Cleanup(func() { cancel(); <-ended; factory.Shutdown() })
			}
			closed := make(chan struct{})
			close(closed)
			handlers := Build(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }),
				Config{Generic: g, MuxComplete: closed, NotAccepting: make(chan struct{})})
			ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				req := (&http.Request{
					Method: http.MethodGet, Proto: "HTTP/2.0", ProtoMajor: 2, Host: "triune", RemoteAddr: "127.0.0.1:4000",
					URL:        &url.URL{Path: "/api/v1/namespaces/default/pods/a"},
					RequestURI: "/api/v1/namespaces/default/pods/a",
					Header:     http.Header{"User-Agent": {"bench"}, "Accept": {"application/json"}},
				}).WithContext(ctx)
				handlers.Edge.ServeHTTP(&sink{header: http.Header{}}, req)
			}
		})
	}
}
