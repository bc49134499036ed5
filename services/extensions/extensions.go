// Package extensions is the last tier of the chain, which serves CustomResourceDefinitions
// and the objects they define, and answers 404 to requests that no tier owns.
//
// A new CRD adds no routes. The tier reads its CRDs with an informer, over a client that
// calls its own handler, and updates the table of package customresource, the discovery
// documents and the OpenAPI documents at every change.
//
// [Command] is the program. [New] makes a [Server] of a [Config], without starting
// anything; its Run serves until its context ends.
package extensions

import (
	"context"
	"net/http"
	"sync"
	"time"

	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"triune.dev/services/extensions/internal/crd"
	"triune.dev/services/extensions/internal/customresource"
	"triune.dev/services/extensions/internal/discovery"
	crdopenapi "triune.dev/services/extensions/internal/openapi"
	"triune.dev/services/extensions/internal/scheme"
	"triune.dev/shared/server/apiserver"
	triuneopenapi "triune.dev/shared/server/openapi"
	"triune.dev/shared/transport/tierclient"
)

// Tier is the name of this tier in messages, metrics and logs.
const Tier = "extensions"

// Server is the extensions tier. Its handlers are safe for concurrent use.
type Server struct {
	server  *apiserver.Server
	objects *customresource.Handler
	tail    *tail
	crds    crdHooks
	// background counts the goroutines of the hooks, which Run waits for.
	background sync.WaitGroup
}

// New makes the server. It starts nothing.
func New(config Config) (*Server, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	s := &Server{tail: newTail()}
	documents := newOpenAPI(config.Generic)
	if err := s.build(config, documents); err != nil {
		return nil, err
	}
	group, err := crd.APIGroup(config.Storage)
	if err != nil {
		return nil, err
	}
	if err := s.server.Install(group); err != nil {
		return nil, err
	}
	documents.Describe(s.server.Table(), triuneopenapi.Version())
	s.server.UnlistedHandle(triuneopenapi.PathV2, documents.Documents())
	s.server.UnlistedHandle(triuneopenapi.PathV3, documents.Documents())
	s.server.UnlistedHandlePrefix(triuneopenapi.PathV3+"/", documents.Documents())
	published := discovery.NewPublisher(s.server.Groups, s.server.Aggregated.WithSource(aggregated.CRDSource))
	s.tail.complete(s.objects, published)
	s.server.AwaitPaths(s.tail.known)
	s.crds = crdHooks{
		server:         s,
		establishDelay: config.PeerDelay,
		started:        make(chan struct{}),
		// Discovery comes last: clients use a resource as soon as they find it there.
		observers: []crd.Observer{s.objects, crdopenapi.NewPublisher(documents.Documents(), documents.V2()), published},
	}
	return s, s.addHooks(config)
}

// build makes the server, which sends paths without a route to the tail, and the handler
// of custom resources.
func (s *Server) build(config Config, documents *triuneopenapi.Service) (err error) {
	generic := *config.Generic
	generic.Serializer = scheme.Codecs
	generic.EquivalentResourceRegistry = nil
	generic.RESTOptionsGetter = nil
	generic.AggregatedDiscoveryGroupManager = nil
	generic.LoopbackClientConfig = s.loopback()
	completed, err := apiserver.Config{
		Tier:          Tier,
		Generic:       &generic,
		Informers:     config.Informers,
		TypeConverter: documents.TypeConverter,
		NotFound:      s.tail,
		HTTP2Server:   config.HTTP2Server,
	}.Complete()
	if err != nil {
		return err
	}
	if s.server, err = completed.New(); err != nil {
		return err
	}
	s.objects, err = customresource.New(customresource.Config{
		NotFound:            http.HandlerFunc(s.tail.notFound),
		RESTOptionsGetter:   config.Storage,
		Admission:           generic.AdmissionControl,
		Authorizer:          generic.Authorization.Authorizer,
		ServiceResolver:     config.ServiceResolver,
		WebhookAuth:         config.WebhookAuth,
		WebhookTimeout:      webhookTimeout,
		RequestTimeout:      generic.RequestTimeout,
		MinRequestTimeout:   time.Duration(generic.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes: generic.MaxRequestBodyBytes,
		PeerDelay:           config.PeerDelay,
	})
	return err
}

// loopback returns the configuration of the client that reads CRDs and writes their status.
// It has all rights and needs no socket, so it works before and after the server listens.
func (s *Server) loopback() *rest.Config {
	config := tierclient.Loopback(Tier, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.Delegated().ServeHTTP(w, req)
	}))
	// The part before the slash is the field manager of the conditions, the same as that
	// of kube-apiserver.
	config.UserAgent = "kube-apiserver/" + Tier
	return config
}

// newOpenAPI returns the OpenAPI documents of the tier's own resources.
func newOpenAPI(generic *genericapiserver.Config) *triuneopenapi.Service {
	config := triuneopenapi.Config{
		Definitions: openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions),
		Schemes:     []*runtime.Scheme{scheme.Scheme, kubescheme.Scheme},
		Title:       "Kubernetes",
	}
	if v := generic.EffectiveVersion; v != nil {
		config.Version = v.EmulationVersion().String()
	}
	if c := generic.OpenAPIConfig; c != nil && c.SecurityDefinitions != nil {
		config.SecurityDefinitions = *c.SecurityDefinitions
	}
	return triuneopenapi.New(config)
}

// Handler returns the handler of requests from clients.
func (s *Server) Handler() http.Handler { return s.server.Handler() }

// Delegated returns the handler of requests that a tier of the same process has
// authenticated.
func (s *Server) Delegated() http.Handler { return s.server.Delegated() }

// Server returns the underlying server, whose health checks another tier of the same
// process adopts.
func (s *Server) Server() *apiserver.Server { return s.server }

// Run serves until ctx ends and all requests in flight have been answered; then it closes
// the storage and returns nil. Call it once.
func (s *Server) Run(ctx context.Context) error {
	err := s.server.Prepare().Run(ctx)
	s.background.Wait()
	close(s.tail.ended)
	s.objects.Close()
	return err
}
