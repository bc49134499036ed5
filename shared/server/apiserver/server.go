package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"

	"triune.dev/shared/server/filters"
	"triune.dev/shared/server/resources"
)

// Server is a tier. Build it with New, add groups, routes, checks and hooks, then
// Prepare and Run it. Only the handlers are safe for concurrent use.
type Server struct {
	// Groups and Aggregated describe what this tier itself serves, in the two
	// forms of discovery; AggregatedLegacy is that of /api.
	Groups           discovery.GroupManager
	Aggregated       aggregated.ResourceManager
	AggregatedLegacy aggregated.ResourceManager

	config    CompletedConfig
	echo      *echo.Echo
	table     *resources.Table
	paths     paths
	handlers  filters.Handlers
	hooks     hooks
	health    health
	lifecycle *lifecycle
	discovery *discoveryRoutes
}

// New builds the server of a tier. Nothing runs yet.
func (c CompletedConfig) New() (*Server, error) {
	g := c.Generic
	boundPatches(g.JSONPatchMaxCopyBytes)
	s := &Server{
		Aggregated:       aggregated.NewResourceManager("apis"),
		AggregatedLegacy: aggregated.NewResourceManager("api"),
		config:           c,
		echo:             echo.New(),
		lifecycle:        newLifecycle(),
	}
	if g.AggregatedDiscoveryGroupManager != nil {
		s.Aggregated = g.AggregatedDiscoveryGroupManager
	}
	s.hooks.loopback = g.LoopbackClientConfig
	s.hooks.disabled = g.DisabledPostStartHooks
	s.health.add(g.HealthzChecks, g.LivezChecks, g.ReadyzChecks)
	s.table = resources.New(resources.Config{
		Admission:           g.AdmissionControl,
		Authorizer:          g.Authorization.Authorizer,
		Equivalents:         c.equivalents,
		TypeConverter:       c.TypeConverter,
		MinRequestTimeout:   time.Duration(g.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes: g.MaxRequestBodyBytes,
		Major:               c.major,
		Minor:               c.minor,
	})
	s.echo.HTTPErrorHandler = s.routingError
	s.handlers = filters.Build(http.HandlerFunc(s.serve), filters.Config{
		Generic:      g,
		Owns:         s.ownership(),
		Next:         s.next(),
		HandOver:     c.Next != nil && c.Next.HandOver,
		MuxComplete:  s.lifecycle.muxComplete,
		NotAccepting: s.lifecycle.notAccepting,
	})
	s.discovery = newDiscoveryRoutes(s)
	if err := s.addGenericHooks(); err != nil {
		return nil, err
	}
	s.addPlainRoutes()
	return s, nil
}

// Handler takes requests as they come from a client. Until the server is prepared
// they wait.
func (s *Server) Handler() http.Handler { return s.oncePrepared(s.handlers.Edge) }

// Delegated takes requests that a tier of the same process has authenticated.
// Until the server is prepared they wait.
func (s *Server) Delegated() http.Handler { return s.oncePrepared(s.handlers.Delegated) }

// oncePrepared keeps requests from looking at routes while they are added: in one
// process the hooks of a tier call the head of the chain, which need not be
// prepared by then.
func (s *Server) oncePrepared(handler http.Handler) http.Handler {
	return &prepared{s.lifecycle.prepared, handler}
}

type prepared struct {
	signal <-chan struct{}
	next   http.Handler
}

// ServeHTTP implements http.Handler.
func (p *prepared) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if p.await(req) {
		p.next.ServeHTTP(w, req)
	}
}

func (p *prepared) await(req *http.Request) bool {
	select {
	case <-p.signal:
		return true
	default:
	}
	select {
	case <-p.signal:
		return true
	case <-req.Context().Done():
		return false
	}
}

// Table is what the tier serves.
func (s *Server) Table() *resources.Table { return s.table }

// Generic is the configuration shared with k8s.io/apiserver's parts.
func (s *Server) Generic() *genericapiserver.Config { return s.config.Generic }

// LoopbackClientConfig reaches this server with all privileges.
func (s *Server) LoopbackClientConfig() *rest.Config { return s.config.Generic.LoopbackClientConfig }

// Install serves the resources of an API group: under /api when it is the legacy
// group, under /apis otherwise.
func (s *Server) Install(info *genericapiserver.APIGroupInfo) error {
	prefix := resources.GroupPrefix
	if len(info.PrioritizedVersions) > 0 && info.PrioritizedVersions[0].Group == "" {
		prefix = resources.LegacyPrefix
	}
	before := len(s.table.Groups())
	if err := s.table.Install(prefix, info); err != nil {
		return err
	}
	for _, group := range s.table.Groups()[before:] {
		for _, version := range group.Versions {
			s.route(version.Root+"/*", version)
			s.paths.addPrefix(version.Root + "/")
		}
		if err := s.discovery.publish(group); err != nil {
			return fmt.Errorf("install API group %q: %w", group.Name, err)
		}
	}
	return nil
}

// Handle routes exactly path to handler and lists it at "/".
func (s *Server) Handle(path string, handler http.Handler) {
	s.paths.list(path)
	s.UnlistedHandle(path, handler)
}

// UnlistedHandle routes exactly path to handler.
func (s *Server) UnlistedHandle(path string, handler http.Handler) {
	s.route(path, handler)
	s.paths.addExact(path)
}

// UnlistedHandlePrefix routes every path that begins with prefix, which ends in
// a slash, to handler.
func (s *Server) UnlistedHandlePrefix(prefix string, handler http.Handler) {
	s.route(prefix+"*", handler)
	s.paths.addPrefix(prefix)
}

// HandlePrefix is UnlistedHandlePrefix, listed.
func (s *Server) HandlePrefix(prefix string, handler http.Handler) {
	s.paths.list(prefix)
	s.UnlistedHandlePrefix(prefix, handler)
}

// route sends every request for a path to handler, whatever its method: which
// methods a path has is the handler's business.
func (s *Server) route(path string, handler http.Handler) { s.echo.Any(path, wrap(handler)) }

// routed is the writer that Echo is given. It takes down which handler Echo has chosen,
// which is called when Echo is done: until the end of a watch nothing of Echo is kept,
// neither its context nor its place on the stack. What Echo answers itself goes through.
type routed struct {
	http.ResponseWriter
	req     *http.Request // as it came
	handler http.Handler
}

// wrap makes an Echo handler of an http.Handler. The handler gets the writer the
// server gave to serve, not Echo's own: k8s.io/apiserver looks for http.Flusher and
// http.Hijacker on it.
func wrap(handler http.Handler) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Writer.(*routed).handler = handler
		return nil
	}
}

// serve is the end of the handler chain: an owned request meets its route.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	if handler := s.find(w, req); handler != nil {
		handler.ServeHTTP(w, req)
	}
}

// find returns nil where the request has been answered.
func (s *Server) find(w http.ResponseWriter, req *http.Request) http.Handler {
	if s.config.Owns != nil && !s.paths.owns(req.URL.Path) {
		if handler, ok := s.config.Owns(req.URL.Path); ok {
			return handler
		}
	}
	route := &routed{ResponseWriter: w, req: req}
	s.echo.ServeHTTP(route, s.paths.routable(req))
	return route.handler
}

// routingError answers what Echo has no route for.
func (s *Server) routingError(err error, c echo.Context) {
	route := c.Response().Writer.(*routed)
	w, req := route.ResponseWriter, route.req
	code := http.StatusNotFound
	if routing, ok := err.(*echo.HTTPError); ok {
		code = routing.Code
	}
	switch {
	case code == http.StatusNotFound && s.config.NotFound != nil:
		s.config.NotFound.ServeHTTP(w, req)
	case code == http.StatusNotFound && !genericapifilters.NoMuxAndDiscoveryIncompleteKey(req.Context()):
		s.refuseForNow(w, req)
	default:
		s.refuse(w, req, code)
	}
}

// pathsRetry is how many seconds kube-apiserver tells clients to wait for paths.
const pathsRetry = 5

// refuseForNow answers for a path that may come to exist; see AwaitPaths.
func (s *Server) refuseForNow(w http.ResponseWriter, req *http.Request) {
	err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: pathsRetry}
	responsewriters.ErrorNegotiated(err, s.config.Generic.Serializer, schema.GroupVersion{}, w, req)
}

// refuse answers with a Status of that code and the message that client-go makes
// of a bare response with it.
func (s *Server) refuse(w http.ResponseWriter, req *http.Request, code int) {
	err := apierrors.NewGenericServerResponse(code, strings.ToLower(req.Method), schema.GroupResource{}, "", "", 0, false)
	responsewriters.ErrorNegotiated(err, s.config.Generic.Serializer, schema.GroupVersion{}, w, req)
}

func (s *Server) ownership() func(*http.Request) bool {
	if s.config.Next == nil {
		return nil
	}
	return func(req *http.Request) bool {
		if s.paths.owns(req.URL.Path) {
			return true
		}
		if s.config.Owns == nil {
			return false
		}
		_, ok := s.config.Owns(req.URL.Path)
		return ok
	}
}

// next passes a request on, for as long as this server runs: the tier behind it
// knows nothing of our shutdown.
func (s *Server) next() http.Handler {
	if s.config.Next == nil {
		return nil
	}
	return &hop{s.config.Generic.LongRunningFunc, s.config.Next.Handler}
}

type hop struct {
	longRunning apirequest.LongRunningRequestCheck
	next        http.Handler
}

// ServeHTTP implements http.Handler.
func (h *hop) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !isLongRunning(h.longRunning, req) {
		h.next.ServeHTTP(w, req)
		return
	}
	ctx, cancel := filters.EndWithServer(req.Context())
	defer cancel()
	h.next.ServeHTTP(w, req.WithContext(ctx))
}

// AddHealthChecks adds checks to healthz, livez and readyz.
func (s *Server) AddHealthChecks(checks ...healthz.HealthChecker) {
	s.health.add(checks, checks, checks)
}

// AddReadyzChecks adds checks to readyz alone.
func (s *Server) AddReadyzChecks(checks ...healthz.HealthChecker) {
	s.health.add(nil, nil, checks)
}
