package filters

import (
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	impersonating "k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authn/outage"
	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/handover"
)

// Config configures a chain.
type Config struct {
	// Generic holds the parts: authenticator, authorizer, audit, limits, request
	// info, wait groups. It must be complete.
	Generic *genericapiserver.Config
	// Unsecured is a copy of Generic with the authenticator of Handlers.Unsecured. It may
	// be nil.
	Unsecured *genericapiserver.Config
	// Owns reports whether this tier owns a request, by its decoded URL path. If it is
	// nil, the tier is the tail of the chain and owns every request.
	Owns func(req *http.Request) bool
	// Next serves the requests that the tier does not own. It is required if Owns is set.
	// The context of a request has user, request info and audit context.
	Next http.Handler
	// NextIsRemote reports that Next sends requests to another process. They get a span, as
	// those of this tier do.
	NextIsRemote bool
	// KeepCredentials keeps the credential of the client in the context of each request, for
	// Next.
	KeepCredentials bool
	// MuxComplete is closed when the tier knows every path that it will ever own. Until
	// then the context of a request says so (NoMuxAndDiscoveryIncompleteKey in
	// k8s.io/apiserver/pkg/endpoints/filters), and a handler without a route for the
	// request answers 503, not 404.
	MuxComplete <-chan struct{}
	// NotAccepting is closed when the tier accepts no new requests. That ends the watches
	// that it serves.
	NotAccepting <-chan struct{}
}

// Handlers are the entrances of a tier.
type Handlers struct {
	// Edge serves requests from a socket.
	Edge http.Handler
	// Unsecured serves requests from a socket without authentication; nil without
	// Config.Unsecured.
	Unsecured http.Handler
	// Delegated serves requests that another tier in the same process has authenticated.
	// It begins at ownership.
	Delegated http.Handler
}

// Build puts the chain in front of handler.
func Build(handler http.Handler, c Config) Handlers {
	proxies := authn.NewFrontProxies(c.Generic.Authentication.RequestHeaderConfig)
	delegated := withOwnership(owned(handler, c, proxies), c, proxies)
	handlers := Handlers{Edge: edge(delegated, c, proxies), Delegated: delegated}
	if c.Unsecured != nil {
		c.Generic = c.Unsecured
		handlers.Unsecured = edge(delegated, c, authn.NewFrontProxies(c.Generic.Authentication.RequestHeaderConfig))
	}
	return handlers
}

// edge is the part of the chain in front of ownership.
func edge(handler http.Handler, c Config, proxies *authn.FrontProxies) http.Handler {
	g := c.Generic
	nested := tracingEnabled(g.TracerProvider)
	unauthorized := outage.Refuse(g.Serializer, keepProxiesOpen(genericapifilters.Unauthorized(g.Serializer), proxies))
	unauthorized = genericapifilters.WithFailedAuthenticationAudit(unauthorized, g.AuditBackend, g.AuditPolicyRuleEvaluator)
	unauthorized = compose(distrust.WithEcho(unauthorized), nested, trackCompleted())

	beforeOwnership := []filter{
		before(func(next http.Handler) http.Handler {
			return genericfilters.WithCORS(next, g.CorsAllowedOriginList, nil, nil, nil, "true")
		}),
		trackStarted(g.TracerProvider, "authentication"),
		before(func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthentication(next, requireAudiences(g.Authentication), unauthorized, nil, g.Authentication.RequestHeaderConfig)
		}),
		cleanProxied(proxies),
		trackCompleted(),
	}
	byDuration := &durationSwitch{
		isLong: g.LongRunningFunc,
		long:   compose(handler, nested, append([]filter{before(withWarnings)}, beforeOwnership...)...),
		short:  withTimeout(compose(handler, nested, beforeOwnership...), g),
	}
	filters := []filter{around(func(next http.Handler) http.Handler {
		return genericfilters.WithPanicRecovery(next, metricsResolver{g.RequestInfoResolver})
	})}
	filters = append(filters, around(genericfilters.WithHTTPLogging))
	if g.ShutdownSendRetryAfter {
		filters = append(filters, before(func(next http.Handler) http.Handler { return genericfilters.WithRetryAfter(next, c.NotAccepting) }))
	}
	if len(g.HSTSDirectives) > 0 {
		filters = append(filters, before(func(next http.Handler) http.Handler { return genericfilters.WithHSTS(next, g.HSTSDirectives) }))
	}
	filters = append(filters, before(genericapifilters.WithCacheControl))
	if g.SecureServing != nil && !g.SecureServing.DisableHTTP2 && g.GoawayChance > 0 {
		filters = append(filters, before(func(next http.Handler) http.Handler {
			return exceptProxies(genericfilters.WithProbabilisticGoaway(next, g.GoawayChance), next, proxies)
		}))
	}
	filters = append(filters, around(func(next http.Handler) http.Handler {
		return genericfilters.WithWatchTerminationDuringShutdown(next, shutdownSignal(c.NotAccepting), g.WatchRequestWaitGroup)
	}))
	first := &requestContext{next: compose(byDuration, nested, filters...), resolver: g.RequestInfoResolver, audiences: g.Authentication.APIAudiences}
	if c.KeepCredentials {
		first.credential = func(req *http.Request) *handover.Credential {
			return handover.FromRequest(req, proxies.AssertedHeaders(req))
		}
	}
	return first
}

// durationSwitch separates long-running requests, which have no deadline, from the others.
type durationSwitch struct {
	isLong      apirequest.LongRunningRequestCheck
	long, short http.Handler
}

// ServeHTTP implements http.Handler.
func (s *durationSwitch) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := s.short
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && s.isLong(req, info) {
		handler = s.long
	}
	handler.ServeHTTP(w, req)
}

// withOwnership sends requests that the tier does not own to the next tier.
func withOwnership(owned http.Handler, c Config, proxies *authn.FrontProxies) http.Handler {
	if c.Owns == nil {
		return owned
	}
	next := c.Next
	if c.NextIsRemote && tracingEnabled(c.Generic.TracerProvider) {
		next = withTracing(next, c.Generic.TracerProvider, proxies)
	}
	return &ownership{c.Owns, owned, next}
}

type ownership struct {
	owns        func(*http.Request) bool
	owned, next http.Handler
}

// ServeHTTP implements http.Handler.
func (o *ownership) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := o.next
	if o.owns(req) {
		handler = o.owned
	}
	handler.ServeHTTP(w, req)
}

// owned is the part of the chain behind ownership.
func owned(handler http.Handler, c Config, proxies *authn.FrontProxies) http.Handler {
	g := c.Generic
	traces := g.TracerProvider
	impersonate, impersonation := impersonating.WithImpersonation, "impersonation"
	if g.FeatureGate.Enabled(genericfeatures.ConstrainedImpersonation) {
		impersonate, impersonation = impersonating.WithConstrainedImpersonation, "constrainedimpersonation"
	}
	var filters []filter
	if g.FeatureGate.Enabled(genericfeatures.APIServerTracing) {
		filters = append(filters, around(func(next http.Handler) http.Handler { return withTracing(next, traces, proxies) }))
	}
	filters = append(filters,
		// The mark is set behind ownership, because the paths that another tier of the
		// process knows say nothing about this tier's.
		before(func(next http.Handler) http.Handler {
			return genericapifilters.WithMuxAndDiscoveryComplete(next, c.MuxComplete)
		}),
		trackStarted(traces, "audit"))
	if g.AuditBackend != nil && g.AuditPolicyRuleEvaluator != nil {
		filters = append(filters, around(func(next http.Handler) http.Handler {
			return genericapifilters.WithAudit(next, g.AuditBackend, g.AuditPolicyRuleEvaluator, g.LongRunningFunc)
		}))
	} else {
		filters = append(filters, filter{wrap: withoutAudit, step: disableAudit})
	}
	filters = append(filters, trackCompleted(), trackStarted(traces, impersonation))
	if c.KeepCredentials {
		filters = append(filters, forgetCredential())
	}
	filters = append(filters,
		before(func(next http.Handler) http.Handler {
			return impersonate(next, g.Authorization.Authorizer, g.Serializer)
		}),
		trackCompleted())
	filters = append(filters, limitInFlight(g)...)
	filters = append(filters,
		trackStarted(traces, "authorization"),
		before(func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthorization(next, g.Authorization.Authorizer, g.Serializer)
		}),
		markVerified(),
		trackCompleted())
	return compose(handler, tracingEnabled(traces), filters...)
}

// forgetCredential removes the client's credential from the context of a request that
// impersonates: it is not the credential of the user as whom the request acts.
func forgetCredential() filter {
	return annotate(func(_ *requestState, req *http.Request) *http.Request {
		if _, ok := req.Header[authenticationv1.ImpersonateUserHeader]; !ok {
			return req
		}
		return req.WithContext(handover.NewContext(req.Context(), nil))
	})
}

// limitInFlight bounds the requests in flight, with priority and fairness if it is on.
func limitInFlight(g *genericapiserver.Config) []filter {
	if g.FlowControl == nil {
		return []filter{copyUnverified(), around(func(next http.Handler) http.Handler { return withMaxInFlight(next, g) })}
	}
	estimate := estimator(g)
	return []filter{
		trackStarted(g.TracerProvider, "priorityandfairness"),
		copyUnverified(),
		// A request may wait a quarter of its time for a seat, and has the rest to be
		// handled.
		around(func(next http.Handler) http.Handler {
			return genericfilters.WithPriorityAndFairness(next, g.LongRunningFunc, redactingFlowControl{g.FlowControl}, estimate, g.RequestTimeout/4)
		}),
		trackCompleted(),
	}
}

// watchesPerSeat is the number of watches interested in a write that count as one seat,
// for five milliseconds after the write. It is 10 in kube-apiserver, where sending one
// event to one watch costs 27 µs of processor time; here it costs 4 µs. With 10, a write
// that interests 500 watches would hold ten seats for 25 ms, and the fifth concurrent one in a
// priority level with 49 seats would wait.
const watchesPerSeat = 64

// estimator estimates how many seats of priority and fairness a request takes, and for how
// long (KEP-1040, "Width of requests").
func estimator(g *genericapiserver.Config) flowcontrolrequest.WorkEstimatorFunc {
	config := flowcontrolrequest.DefaultWorkEstimatorConfig()
	config.WatchesPerSeat = watchesPerSeat
	return flowcontrolrequest.NewWorkEstimator(g.StorageObjectCountTracker.Get,
		g.FlowControl.GetInterestedWatchCount, config, g.FlowControl.GetMaxSeats)
}
