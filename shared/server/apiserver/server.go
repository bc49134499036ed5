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

// Server is the server of a tier. Build it with CompletedConfig.New, install groups, routes,
// checks and hooks, then call Prepare and Run. Only the handlers are safe for concurrent use.
type Server struct {
	// Groups and Aggregated describe the groups that this tier itself serves below /apis, in
	// the two forms of discovery. AggregatedLegacy describes /api.
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

// New builds the server, without starting anything.
func (c CompletedConfig) New() (*Server, error) {
	g := c.Generic
	limitPatchCopies(g.JSONPatchMaxCopyBytes)
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
	s.health.add([]healthz.HealthChecker{loopbackCertificate}, []healthz.HealthChecker{loopbackCertificate}, nil)
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
	var unsecured *genericapiserver.Config
	if c.Unsecured != nil {
		unsecured = withoutAuthentication(g)
	}
	s.handlers = filters.Build(http.HandlerFunc(s.serve), filters.Config{
		Generic:         g,
		Unsecured:       unsecured,
		Owns:            s.ownership(),
		Next:            s.next(),
		NextIsRemote:    c.Next != nil && c.Next.Run != nil,
		KeepCredentials: c.Next != nil && c.Next.NeedsCredentials,
		MuxComplete:     s.lifecycle.muxComplete,
		NotAccepting:    s.lifecycle.notAccepting,
	})
	s.discovery = newDiscoveryRoutes(s)
	if err := s.addGenericHooks(); err != nil {
		return nil, err
	}
	s.addNonResourceRoutes()
	return s, nil
}

// Handler serves requests of clients. They wait until the server is prepared.
func (s *Server) Handler() http.Handler { return s.afterPrepare(s.handlers.Edge) }

// Delegated serves requests that another tier in the same process has authenticated. They
// wait until the server is prepared.
func (s *Server) Delegated() http.Handler { return s.afterPrepare(s.handlers.Delegated) }

// afterPrepare delays requests until all routes are added: in one process, the hooks of a
// tier may call the head of the chain before it is prepared.
func (s *Server) afterPrepare(handler http.Handler) http.Handler {
	return &waitHandler{s.lifecycle.prepared, handler}
}

type waitHandler struct {
	signal <-chan struct{}
	next   http.Handler
}

// ServeHTTP implements http.Handler.
func (h *waitHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.wait(req) {
		h.next.ServeHTTP(w, req)
	}
}

func (h *waitHandler) wait(req *http.Request) bool {
	select {
	case <-h.signal:
		return true
	default:
	}
	select {
	case <-h.signal:
		return true
	case <-req.Context().Done():
		return false
	}
}

// Table returns the resource table of the tier.
func (s *Server) Table() *resources.Table { return s.table }

// Generic returns the configuration of the parts of k8s.io/apiserver.
func (s *Server) Generic() *genericapiserver.Config { return s.config.Generic }

// LoopbackClientConfig returns the configuration of a client of this server with all
// privileges.
func (s *Server) LoopbackClientConfig() *rest.Config { return s.config.Generic.LoopbackClientConfig }

// Install serves the resources of an API group, below /api for the legacy group and below
// /apis for others.
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

// Handle routes path to handler and lists it at "/".
func (s *Server) Handle(path string, handler http.Handler) {
	s.paths.list(path)
	s.UnlistedHandle(path, handler)
}

// UnlistedHandle routes path to handler.
func (s *Server) UnlistedHandle(path string, handler http.Handler) {
	s.route(path, handler)
	s.paths.addExact(path)
}

// UnlistedHandlePrefix routes every path with prefix, which must end in a slash, to handler.
func (s *Server) UnlistedHandlePrefix(prefix string, handler http.Handler) {
	s.route(prefix+"*", handler)
	s.paths.addPrefix(prefix)
}

// HandlePrefix routes every path with prefix, which must end in a slash, to handler, and
// lists prefix at "/".
func (s *Server) HandlePrefix(prefix string, handler http.Handler) {
	s.paths.list(prefix)
	s.UnlistedHandlePrefix(prefix, handler)
}

// route routes path to handler for all methods. The handler refuses the methods that it
// does not support.
func (s *Server) route(path string, handler http.Handler) { s.echo.Any(path, recordHandler(handler)) }

// routeRecorder is the writer for Echo. It records the handler that Echo has found. The
// server calls that handler after Echo has returned, so that a watch holds neither Echo's
// context nor its stack frames. Echo's own answers go to the embedded writer.
type routeRecorder struct {
	http.ResponseWriter
	req     *http.Request // the original request
	handler http.Handler
}

// recordHandler returns an Echo handler that records an http.Handler. That handler is called
// with the server's own writer, not with Echo's, because k8s.io/apiserver requires its
// http.Flusher and http.Hijacker.
func recordHandler(handler http.Handler) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Writer.(*routeRecorder).handler = handler
		return nil
	}
}

// serve is the end of the handler chain. It routes an owned request.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	if handler := s.find(w, req); handler != nil {
		handler.ServeHTTP(w, req)
	}
}

// find returns the handler of a request, or nil if the request has been answered.
func (s *Server) find(w http.ResponseWriter, req *http.Request) http.Handler {
	if s.config.Owns != nil && !s.paths.owns(req.URL.Path) {
		if handler, ok := s.config.Owns(req.URL.Path); ok {
			return handler
		}
	}
	route := &routeRecorder{ResponseWriter: w, req: req}
	s.echo.ServeHTTP(route, s.paths.routable(req))
	return route.handler
}

// routingError answers requests without a route.
func (s *Server) routingError(err error, c echo.Context) {
	route := c.Response().Writer.(*routeRecorder)
	w, req := route.ResponseWriter, route.req
	code := http.StatusNotFound
	if httpError, ok := err.(*echo.HTTPError); ok {
		code = httpError.Code
	}
	switch {
	case code == http.StatusNotFound && s.config.NotFound != nil:
		s.config.NotFound.ServeHTTP(w, req)
	case code == http.StatusNotFound && !genericapifilters.NoMuxAndDiscoveryIncompleteKey(req.Context()):
		s.writePathsNotReady(w, req)
	default:
		s.writeStatus(w, req, code)
	}
}

// pathsRetryAfter is the Retry-After of kube-apiserver for unknown paths, in seconds.
const pathsRetryAfter = 5

// writePathsNotReady answers 503 for a path that may exist later; see AwaitPaths.
func (s *Server) writePathsNotReady(w http.ResponseWriter, req *http.Request) {
	err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: pathsRetryAfter}
	responsewriters.ErrorNegotiated(err, s.config.Generic.Serializer, schema.GroupVersion{}, w, req)
}

// writeStatus answers with a Status of the given code, and the message by which client-go
// describes an answer without a body.
func (s *Server) writeStatus(w http.ResponseWriter, req *http.Request, code int) {
	err := apierrors.NewGenericServerResponse(code, strings.ToLower(req.Method), schema.GroupResource{}, "", "", 0, false)
	responsewriters.ErrorNegotiated(err, s.config.Generic.Serializer, schema.GroupVersion{}, w, req)
}

// ownership returns a function that reports whether the tier owns a request. It is nil for
// the tail of the chain.
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

// next returns the handler of requests for the next tier, or nil if there is none. It ends
// long-running requests when this server shuts down, because the next tier does not know of
// that.
func (s *Server) next() http.Handler {
	if s.config.Next == nil {
		return nil
	}
	return &nextHandler{s.config.Generic.LongRunningFunc, s.config.Next.Handler}
}

type nextHandler struct {
	longRunning apirequest.LongRunningRequestCheck
	next        http.Handler
}

// ServeHTTP implements http.Handler.
func (h *nextHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
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

// AddReadyzChecks adds checks to readyz.
func (s *Server) AddReadyzChecks(checks ...healthz.HealthChecker) {
	s.health.add(nil, nil, checks)
}
