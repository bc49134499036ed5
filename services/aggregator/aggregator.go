// Package aggregator is the first tier of the chain, to which clients connect.
//
// [New] makes a [Server] from a [Config], and [Server.Run] serves; [Command] is the program. The
// tier owns APIServices. For an APIService that names a Service, it authorizes, audits and limits
// the requests of the group-version and proxies them to the extension server on behalf of the
// user. All other requests go to the next tier. The tier also serves the merged discovery and
// OpenAPI of itself, the tiers behind it and the extension servers.
//
// The parts are internal packages: apiservices is the table of group-versions, remote reaches
// extension servers, discovery merges discovery documents, availability updates the conditions of
// APIServices, and autoregister maintains APIServices for the tiers behind this one.
package aggregator

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/util/openapi"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	generatedopenapi "k8s.io/kube-aggregator/pkg/generated/openapi"

	"triune.dev/services/aggregator/internal/apiservices"
	"triune.dev/services/aggregator/internal/autoregister"
	"triune.dev/services/aggregator/internal/availability"
	"triune.dev/services/aggregator/internal/discovery"
	"triune.dev/services/aggregator/internal/registration"
	"triune.dev/services/aggregator/internal/scheme"
	"triune.dev/shared/server/apiserver"
	triuneopenapi "triune.dev/shared/server/openapi"
	"triune.dev/shared/server/openapi/merged"
	"triune.dev/shared/transport/documents"
	"triune.dev/shared/transport/tierclient"
)

// Tier is the name of this tier in messages, metrics and logs.
const Tier = "aggregator"

// Server is the aggregator. Its handlers are safe for concurrent use.
type Server struct {
	server *apiserver.Server

	table     *apiservices.Table
	network   *network
	discovery *discovery.Manager
	registrar *autoregister.Registrar
	// availability updates the conditions of APIServices.
	availability *availability.Controller
	openapi      *merged.Documents
	// tierOpenAPI are the OpenAPI sources of this and the next tier.
	tierOpenAPI []merged.Source

	apiServices    apiregistrationinformers.SharedInformerFactory
	crds           cache.SharedIndexInformer
	markCRDsSynced func(context.Context)
	// tableReady is closed once the table is built.
	tableReady chan struct{}
	// background counts the goroutines of hooks, for which Run waits.
	background sync.WaitGroup
}

// New returns a server; Run starts it.
func New(config Config) (*Server, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	s := &Server{tableReady: make(chan struct{})}
	openAPI := newOpenAPI(config)
	if err := s.build(config, openAPI); err != nil {
		return nil, err
	}
	if err := s.server.Install(registration.APIGroup(config.Storage)); err != nil {
		return nil, err
	}
	openAPI.Describe(s.server.Table(), triuneopenapi.Version(), triuneopenapi.GroupList(scheme.Codecs))

	client, err := apiregistrationclient.NewForConfig(s.server.LoopbackClientConfig())
	if err != nil {
		return nil, fmt.Errorf("make the client of apiservices: %w", err)
	}
	s.apiServices = apiregistrationinformers.NewSharedInformerFactory(client, 0)
	if s.network, err = newNetwork(config, s.recheck); err != nil {
		return nil, err
	}
	informer := s.apiServices.Apiregistration().V1().APIServices()
	if s.table, err = apiservices.NewTable(informer, s.network.backend); err != nil {
		return nil, err
	}
	if s.availability, err = s.network.newAvailability(config, informer, client); err != nil {
		return nil, err
	}
	if s.registrar, err = autoregister.New(informer, client.ApiregistrationV1()); err != nil {
		return nil, err
	}
	if err := s.addDiscovery(config); err != nil {
		return nil, err
	}
	if err := s.watchCRDs(config); err != nil {
		return nil, err
	}
	s.addOpenAPI(config, openAPI)
	s.table.OnSwap(s.setSnapshot)
	s.server.AwaitPaths(s.tableReady)
	return s, s.addHooks(config)
}

// build creates the API server with its handler chain.
func (s *Server) build(config Config, openAPI *triuneopenapi.Service) (err error) {
	generic := *config.Generic
	generic.Serializer = scheme.Codecs
	generic.EquivalentResourceRegistry = nil
	generic.RESTOptionsGetter = nil
	generic.AggregatedDiscoveryGroupManager = nil
	// The loopback client has full rights and no socket, so that it works before and after
	// the server listens.
	generic.LoopbackClientConfig = tierclient.Loopback(Tier, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.Delegated().ServeHTTP(w, req)
	}))
	completed, err := apiserver.Config{
		Tier:          Tier,
		Generic:       &generic,
		Informers:     config.Informers,
		Next:          config.Next,
		Owns:          s.owns,
		Listed:        s.listed,
		TypeConverter: openAPI.TypeConverter,
		Unsecured:     config.Unsecured,
		HTTP2Server:   config.HTTP2Server,
	}.Complete()
	if err != nil {
		return err
	}
	s.server, err = completed.New()
	return err
}

// newOpenAPI describes the resources of this tier.
func newOpenAPI(config Config) *triuneopenapi.Service {
	c := triuneopenapi.Config{
		Definitions: openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions),
		Schemes:     []*runtime.Scheme{scheme.Scheme, kubescheme.Scheme},
		Title:       "Kubernetes",
	}
	if v := config.Generic.EffectiveVersion; v != nil {
		c.Version = v.EmulationVersion().String()
	}
	if o := config.Generic.OpenAPIConfig; o != nil && o.SecurityDefinitions != nil {
		c.SecurityDefinitions = *o.SecurityDefinitions
	}
	return triuneopenapi.New(c)
}

// addDiscovery serves /api and /apis for all tiers and extension servers.
func (s *Server) addDiscovery(config Config) error {
	own, err := registration.Discovery(s.server.Table().Groups()[0])
	if err != nil {
		return err
	}
	s.discovery = discovery.NewManager(discovery.Config{
		Next:     documents.Handler(config.Next.Handler),
		Own:      own,
		Priority: priorityOf,
		OnNext:   s.registrar.SetServed,
		Pace:     config.pace,
	})
	groups := http.HandlerFunc(s.discovery.ServeGroups)
	legacy := s.server.DocumentOnly(s.discovery.ServeLegacy(s.server.Generic().DiscoveryAddresses))
	s.server.Handle("/apis", groups)
	s.server.Handle("/apis/", groups)
	s.server.Handle("/api", legacy)
	s.server.UnlistedHandle("/api/", legacy)
	return nil
}

// watchCRDs watches the CRDs of the extensions tier.
func (s *Server) watchCRDs(config Config) error {
	client, err := apiextensionsclient.NewForConfig(tierclient.Config(Tier, config.Next.Handler))
	if err != nil {
		return fmt.Errorf("make the client of custom resource definitions: %w", err)
	}
	s.crds = crdinformers.NewCustomResourceDefinitionInformer(client, 0, cache.Indexers{})
	if err := s.crds.SetTransform(autoregister.StripCRD); err != nil {
		return fmt.Errorf("watch customresourcedefinitions: %w", err)
	}
	s.markCRDsSynced, err = s.registrar.WatchCRDs(s.crds, s.discovery.PollNextSoon)
	return err
}

// addOpenAPI serves /openapi for all tiers and extension servers.
func (s *Server) addOpenAPI(config Config, own *triuneopenapi.Service) {
	next := tierclient.As(documents.Aggregator, config.Next.Handler)
	s.tierOpenAPI = []merged.Source{
		{Name: Tier, From: documents.Handler(own.Documents()), Handler: own.Documents(), Patience: buildPatience},
		{Name: config.Next.Tier, From: documents.Handler(next), Handler: next, Patience: buildPatience},
	}
	s.openapi = merged.NewDocuments(s.tierOpenAPI...)
	s.server.Handle(triuneopenapi.PathV2, s.openapi)
	s.server.Handle(triuneopenapi.PathV3, counted(triuneopenapi.PathV3, s.openapi))
	s.server.HandlePrefix(triuneopenapi.PathV3+"/", counted(triuneopenapi.PathV3+"/", s.openapi))
}

// counted counts the requests of a document in the metrics of requests, labelled as in
// kube-aggregator.
func counted(path string, handler http.Handler) http.Handler {
	return metrics.InstrumentHandlerFunc(http.MethodGet, "", "", "", strings.TrimPrefix(path, "/"), "", "", false, "", handler.ServeHTTP)
}

// setSnapshot passes a new table to the other parts.
func (s *Server) setSnapshot(snapshot *apiservices.Snapshot) {
	s.network.transports.Retain(snapshot.All())
	s.discovery.SetSnapshot(snapshot)
	s.openapi.SetSources(append(s.tierOpenAPI[:2:2], openapiSources(snapshot)...))
	select {
	case <-s.tableReady:
	default:
		close(s.tableReady)
	}
}

// recheck checks an extension server that a request could not reach.
func (s *Server) recheck(apiService string) {
	s.discovery.Recheck(apiService)
	s.availability.Recheck(apiService)
}

// Handler returns the handler for requests of clients.
func (s *Server) Handler() http.Handler { return s.server.Handler() }

// Delegated returns the handler for requests that were authenticated in this process.
func (s *Server) Delegated() http.Handler { return s.server.Delegated() }

// Server returns the underlying server, for adding the health checks of other tiers.
func (s *Server) Server() *apiserver.Server { return s.server }

// Run serves until ctx ends and all requests in flight are answered. Then it closes the storage and
// returns nil. Call it once.
func (s *Server) Run(ctx context.Context) error {
	err := s.server.Prepare().Run(ctx)
	s.background.Wait()
	s.openapi.Close()
	s.network.transports.Enqueue()
	return err
}
