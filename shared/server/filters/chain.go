// Package filters is the handler chain every tier puts in front of what it serves.
//
// The order is kube-apiserver's with one step more. After authentication comes
// ownership: a request whose path is not this tier's goes to the next tier at
// once, with the identity it has been given. Everything behind ownership
// (tracing, audit, impersonation, priority and fairness, authorization) is done
// by the tier that serves the request, and by it alone, so each request is
// audited, counted and authorized once, whatever the number of tiers it passed.
//
//	audit init, request info, latencies · recovery · wait groups · deadline · CORS ·
//	authentication · OWNERSHIP ─ not ours ─► next tier
//	                     │ ours
//	tracing · audit · impersonation · fairness · authorization · the handler
//
// The filters are those of k8s.io/apiserver, but for those that only cost a copy of
// the request.
package filters

import (
	"context"
	"net/http"
	"sync"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	impersonating "k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/tracing"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authn/outage"
	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/handover"
)

// Config says what a chain is made of.
type Config struct {
	// Generic holds the parts: authenticator, authorizer, audit, limits, request
	// info, wait groups. It must be complete.
	Generic *genericapiserver.Config
	// Owns tells whether a request is this tier's, by its decoded URL path. Nil
	// means that everything is: the tail of the chain.
	Owns func(req *http.Request) bool
	// Next takes what Owns declines. Required when Owns is set. It is called with
	// user, request info and audit context in the request's context.
	Next http.Handler
	// HandOver keeps the credential of each request in its context, for Next.
	HandOver bool
	// MuxComplete is closed when every path the tier will ever own is known. Until
	// then the context of a request says so (see NoMuxAndDiscoveryIncompleteKey in
	// package filters), and whoever finds no route for it answers 503, not 404.
	MuxComplete <-chan struct{}
	// NotAccepting is closed when the tier no longer takes new requests, and
	// ends the watches that it serves.
	NotAccepting <-chan struct{}
}

// Handlers are the two ways into a tier.
type Handlers struct {
	// Edge takes a request from a socket.
	Edge http.Handler
	// Delegated takes a request that a tier in the same process has already
	// authenticated; it begins at ownership.
	Delegated http.Handler
}

// Build puts the chain in front of serve.
func Build(serve http.Handler, c Config) Handlers {
	delegated := withOwnership(served(serve, c), c)
	return Handlers{Edge: edge(delegated, c), Delegated: delegated}
}

// served is what only the owner of a request does.
func served(handler http.Handler, c Config) http.Handler {
	g := c.Generic
	traces := g.TracerProvider
	impersonate, impersonation := impersonating.WithImpersonation, "impersonation"
	if g.FeatureGate.Enabled(genericfeatures.ConstrainedImpersonation) {
		impersonate, impersonation = impersonating.WithConstrainedImpersonation, "constrainedimpersonation"
	}
	var parts []part
	if g.FeatureGate.Enabled(genericfeatures.APIServerTracing) {
		parts = append(parts, around(func(next http.Handler) http.Handler { return withTracing(next, traces) }))
	}
	parts = append(parts,
		// Marked where a request enters the tier that owns it, so that what another
		// tier of the process knows of its paths says nothing of ours.
		before(func(next http.Handler) http.Handler {
			return genericapifilters.WithMuxAndDiscoveryComplete(next, c.MuxComplete)
		}),
		began(traces, "audit"))
	if g.AuditBackend != nil && g.AuditPolicyRuleEvaluator != nil {
		parts = append(parts, around(func(next http.Handler) http.Handler {
			return genericapifilters.WithAudit(next, g.AuditBackend, g.AuditPolicyRuleEvaluator, g.LongRunningFunc)
		}))
	}
	if g.AuditBackend == nil || g.AuditPolicyRuleEvaluator == nil {
		parts = append(parts, part{filter: withoutAudit, link: unaudited})
	}
	parts = append(parts, ended(),
		began(traces, impersonation),
		before(func(next http.Handler) http.Handler {
			return impersonate(next, g.Authorization.Authorizer, g.Serializer)
		}),
		ended())
	parts = append(parts, limit(g)...)
	parts = append(parts,
		began(traces, "authorization"),
		before(func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthorization(next, g.Authorization.Authorizer, g.Serializer)
		}),
		wasAllowed(),
		ended())
	return compose(handler, !untraced(traces), parts...)
}

// withTracing traces requests. Where traces go nowhere, which is the default, the
// filter only hands on the context of the caller's trace, to webhooks for example,
// and a request that has none is spared its cost: a tenth of the chain's.
func withTracing(next http.Handler, provider tracing.TracerProvider) http.Handler {
	traced := genericapifilters.WithTracing(next, provider)
	if !untraced(provider) {
		return traced
	}
	return &callersTrace{traced, next}
}

type callersTrace struct{ traced, next http.Handler }

// ServeHTTP implements http.Handler.
func (t *callersTrace) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := t.next
	// The headers of W3C Trace Context and of W3C Baggage.
	if req.Header.Get("Traceparent") != "" || req.Header.Get("Baggage") != "" {
		handler = t.traced
	}
	handler.ServeHTTP(w, req)
}

// limit bounds the requests in flight, by priority and fairness where it is on.
func limit(g *genericapiserver.Config) []part {
	if g.FlowControl == nil {
		return []part{mayBeRefused(), around(func(next http.Handler) http.Handler { return namelessInFlight(next, g) })}
	}
	estimate := estimator(g)
	return []part{
		began(g.TracerProvider, "priorityandfairness"),
		mayBeRefused(),
		// A request may wait a quarter of its time for a seat, so that it has the
		// rest to do its work.
		around(func(next http.Handler) http.Handler {
			return genericfilters.WithPriorityAndFairness(next, g.LongRunningFunc, nameless{g.FlowControl}, estimate, g.RequestTimeout/4)
		}),
		ended(),
	}
}

// watchesPerSeat is how many watches of what a request changes count as one seat for five
// milliseconds after it. In kube-apiserver, where to tell one watch of a change costs 27 µs
// of processor time, it is 10; it costs 4 µs here. With 10 a change that 500 watches hear of
// would keep ten seats for 25 ms, and the fifth at once of a priority level with 49 seats
// would wait for them.
const watchesPerSeat = 64

// estimator tells how many seats of priority and fairness a request takes, and for how long
// (KEP-1040, "Width of requests").
func estimator(g *genericapiserver.Config) flowcontrolrequest.WorkEstimatorFunc {
	config := flowcontrolrequest.DefaultWorkEstimatorConfig()
	config.WatchesPerSeat = watchesPerSeat
	return flowcontrolrequest.NewWorkEstimator(g.StorageObjectCountTracker.Get,
		g.FlowControl.GetInterestedWatchCount, config, g.FlowControl.GetMaxSeats)
}

// withOwnership sends what the tier does not own to the next one.
func withOwnership(ours http.Handler, c Config) http.Handler {
	if c.Owns == nil {
		return ours
	}
	return &ownership{c.Owns, ours, c.Next}
}

type ownership struct {
	owns       func(*http.Request) bool
	ours, next http.Handler
}

// ServeHTTP implements http.Handler.
func (o *ownership) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := o.next
	if o.owns(req) {
		handler = o.ours
	}
	handler.ServeHTTP(w, req)
}

// edge is what happens to a request before anybody asks whose it is.
func edge(handler http.Handler, c Config) http.Handler {
	g := c.Generic
	nested := !untraced(g.TracerProvider)
	proxies := authn.NewFrontProxies(g.Authentication.RequestHeaderConfig)
	refused := outage.Refuse(g.Serializer, keepOpen(genericapifilters.Unauthorized(g.Serializer), proxies))
	refused = genericapifilters.WithFailedAuthenticationAudit(refused, g.AuditBackend, g.AuditPolicyRuleEvaluator)
	refused = compose(distrust.Mark(refused), nested, ended())

	authenticated := []part{
		before(func(next http.Handler) http.Handler {
			return genericfilters.WithCORS(next, g.CorsAllowedOriginList, nil, nil, nil, "true")
		}),
		began(g.TracerProvider, "authentication"),
		before(func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthentication(next, forAudiences(g.Authentication), refused, nil, g.Authentication.RequestHeaderConfig)
		}),
		passed(proxies),
		ended(),
	}
	forked := &fork{
		longRunning: g.LongRunningFunc,
		long:        compose(handler, nested, append([]part{before(withWarnings)}, authenticated...)...),
		short:       bounded(compose(handler, nested, authenticated...), g),
	}
	parts := []part{around(func(next http.Handler) http.Handler {
		return genericfilters.WithPanicRecovery(next, labelled{g.RequestInfoResolver})
	})}
	if g.FeatureGate.Enabled(genericfeatures.APIServingWithRoutine) {
		parts = append(parts, around(func(next http.Handler) http.Handler { return routine.WithRoutine(next, g.LongRunningFunc) }))
	}
	parts = append(parts, around(genericfilters.WithHTTPLogging))
	if g.ShutdownSendRetryAfter {
		parts = append(parts, before(func(next http.Handler) http.Handler { return genericfilters.WithRetryAfter(next, c.NotAccepting) }))
	}
	if len(g.HSTSDirectives) > 0 {
		parts = append(parts, before(func(next http.Handler) http.Handler { return genericfilters.WithHSTS(next, g.HSTSDirectives) }))
	}
	parts = append(parts, before(genericapifilters.WithCacheControl))
	if g.SecureServing != nil && !g.SecureServing.DisableHTTP2 && g.GoawayChance > 0 {
		parts = append(parts, before(func(next http.Handler) http.Handler {
			return exceptProxies(genericfilters.WithProbabilisticGoaway(next, g.GoawayChance), next, proxies)
		}))
	}
	parts = append(parts, around(func(next http.Handler) http.Handler {
		return genericfilters.WithWatchTerminationDuringShutdown(next, shutdown(c.NotAccepting), g.WatchRequestWaitGroup)
	}))
	begin := &beginning{next: compose(forked, nested, parts...), resolver: g.RequestInfoResolver, audiences: g.Authentication.APIAudiences}
	if c.HandOver {
		begin.credential = func(req *http.Request) *handover.Credential { return handover.Of(req, proxies.Asserted(req)) }
	}
	return begin
}

// fork spares requests without a bound, which stay, the filters that bound the others.
type fork struct {
	longRunning apirequest.LongRunningRequestCheck
	long, short http.Handler
}

// ServeHTTP implements http.Handler.
func (f *fork) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := f.short
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && f.longRunning(req, info) {
		handler = f.long
	}
	handler.ServeHTTP(w, req)
}

// shutdown is the signal that ends watches.
type shutdown <-chan struct{}

// ShuttingDown implements apirequest.ServerShutdownSignal.
func (s shutdown) ShuttingDown() <-chan struct{} { return s }

var _ apirequest.ServerShutdownSignal = shutdown(nil)

// EndWithServer returns a context that is cancelled with the shutdown signal of
// ctx, for requests that are passed on: nobody further down sees that signal. The
// caller must call the returned function.
func EndWithServer(ctx context.Context) (context.Context, context.CancelFunc) {
	signal := apirequest.ServerShutdownSignalFrom(ctx)
	ctx, cancel := context.WithCancel(ctx)
	if signal == nil {
		return ctx, cancel
	}
	stop := endings.join(signal.ShuttingDown(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// endings are requests that end with a server.
var endings signalled

// signalled calls functions when a signal comes. All with the same signal share the
// goroutine that waits for it, which ends with the last one. The zero value is ready.
type signalled struct {
	mu sync.Mutex
	// groups by the signal; guarded by mu, as is what is in them.
	groups map[<-chan struct{}]*signalGroup
}

type signalGroup struct {
	calls map[*context.CancelFunc]struct{}
	left  chan struct{}
}

// join returns a function that takes the call back. It must be called, and waits for
// nobody.
func (s *signalled) join(signal <-chan struct{}, call context.CancelFunc) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[signal]
	if g == nil {
		g = &signalGroup{calls: map[*context.CancelFunc]struct{}{}, left: make(chan struct{})}
		if s.groups == nil {
			s.groups = map[<-chan struct{}]*signalGroup{}
		}
		s.groups[signal] = g
		go s.wait(signal, g)
	}
	member := &call
	g.calls[member] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(g.calls, member)
		if len(g.calls) == 0 && s.groups[signal] == g {
			delete(s.groups, signal)
			close(g.left)
		}
	}
}

func (s *signalled) wait(signal <-chan struct{}, g *signalGroup) {
	select {
	case <-g.left:
		return
	case <-signal:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, signal) // who joins now is called by a goroutine of its own
	for call := range g.calls {
		(*call)()
	}
}
