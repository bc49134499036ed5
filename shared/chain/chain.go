// Package chain is the handler chain every tier puts in front of what it serves.
//
// The order is kube-apiserver's with one step more. After authentication comes
// ownership: a request whose path is not this tier's goes to the next tier at
// once, with the identity it has been given. Everything behind ownership
// (tracing, audit, impersonation, priority and fairness, authorization) is done
// by the tier that serves the request, and by it alone, so each request is
// audited, counted and authorized once, whatever the number of tiers it passed.
//
//	audit init, request info · recovery · deadline · wait groups · CORS ·
//	authentication · OWNERSHIP ─ not ours ─► next tier
//	                     │ ours
//	tracing · audit · impersonation · fairness · authorization · the handler
//
// The filters are those of k8s.io/apiserver, but for those that only cost a copy of
// the request.
package chain

import (
	"context"
	"net/http"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/tracing"

	"triune.dev/shared/authn/outage"
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
	// Marked where a request enters the tier that owns it, so that what another
	// tier of the process knows of its paths says nothing of ours.
	ours := genericapifilters.WithMuxAndDiscoveryComplete(served(serve, c.Generic), c.MuxComplete)
	delegated := withOwnership(ours, c)
	return Handlers{Edge: edge(delegated, c), Delegated: delegated}
}

// served is what only the owner of a request does.
func served(handler http.Handler, g *genericapiserver.Config) http.Handler {
	handler = ended(handler, g.TracerProvider)
	handler = genericapifilters.WithAuthorization(handler, g.Authorization.Authorizer, g.Serializer)
	handler = began(handler, g.TracerProvider, "authorization")

	handler = withLimit(handler, g)

	impersonate, step := impersonation.WithImpersonation, "impersonation"
	if g.FeatureGate.Enabled(genericfeatures.ConstrainedImpersonation) {
		impersonate, step = impersonation.WithConstrainedImpersonation, "constrainedimpersonation"
	}
	handler = ended(handler, g.TracerProvider)
	handler = impersonate(handler, g.Authorization.Authorizer, g.Serializer)
	handler = began(handler, g.TracerProvider, step)

	handler = ended(handler, g.TracerProvider)
	handler = genericapifilters.WithAudit(handler, g.AuditBackend, g.AuditPolicyRuleEvaluator, g.LongRunningFunc)
	handler = began(handler, g.TracerProvider, "audit")

	if g.FeatureGate.Enabled(genericfeatures.APIServerTracing) {
		handler = withTracing(handler, g.TracerProvider)
	}
	return handler
}

// withTracing traces requests. Where traces go nowhere, which is the default, the
// filter only hands on the context of the caller's trace, to webhooks for example,
// and a request that has none is spared its cost: a tenth of the chain's.
func withTracing(handler http.Handler, provider tracing.TracerProvider) http.Handler {
	traced := genericapifilters.WithTracing(handler, provider)
	if !untraced(provider) {
		return traced
	}
	// The headers of W3C Trace Context and of W3C Baggage.
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Traceparent") == "" && req.Header.Get("Baggage") == "" {
			handler.ServeHTTP(w, req)
			return
		}
		traced.ServeHTTP(w, req)
	})
}

// withLimit bounds the requests in flight, by priority and fairness where it is
// on.
func withLimit(handler http.Handler, g *genericapiserver.Config) http.Handler {
	if g.FlowControl == nil {
		return genericfilters.WithMaxInFlightLimit(handler, g.MaxRequestsInFlight, g.MaxMutatingRequestsInFlight, g.LongRunningFunc)
	}
	estimate := flowcontrolrequest.NewWorkEstimator(g.StorageObjectCountTracker.Get,
		g.FlowControl.GetInterestedWatchCount, flowcontrolrequest.DefaultWorkEstimatorConfig(), g.FlowControl.GetMaxSeats)
	handler = ended(handler, g.TracerProvider)
	// A request may wait a quarter of its time for a seat, so that it has the
	// rest to do its work.
	handler = genericfilters.WithPriorityAndFairness(handler, g.LongRunningFunc, g.FlowControl, estimate, g.RequestTimeout/4)
	return began(handler, g.TracerProvider, "priorityandfairness")
}

// withOwnership sends what the tier does not own to the next one.
func withOwnership(ours http.Handler, c Config) http.Handler {
	if c.Owns == nil {
		return ours
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if c.Owns(req) {
			ours.ServeHTTP(w, req)
			return
		}
		c.Next.ServeHTTP(w, req)
	})
}

// edge is what happens to a request before anybody asks whose it is.
func edge(handler http.Handler, c Config) http.Handler {
	g := c.Generic
	refused := outage.Refuse(g.Serializer, genericapifilters.Unauthorized(g.Serializer))
	refused = genericapifilters.WithFailedAuthenticationAudit(refused, g.AuditBackend, g.AuditPolicyRuleEvaluator)
	refused = ended(refused, g.TracerProvider)

	handler = ended(handler, g.TracerProvider)
	handler = genericapifilters.WithAuthentication(handler, g.Authentication.Authenticator, refused,
		g.Authentication.APIAudiences, g.Authentication.RequestHeaderConfig)
	handler = outage.Track(handler)
	handler = began(handler, g.TracerProvider, "authentication")

	handler = genericfilters.WithCORS(handler, g.CorsAllowedOriginList, nil, nil, nil, "true")
	// The warning recorder adds headers, so it must be inside the timeout, which
	// makes the response writer safe for the goroutine it leaves behind.
	handler = genericapifilters.WithWarningRecorder(handler)
	handler = withStack(handler, g.LongRunningFunc)
	handler = genericfilters.WithTimeoutForNonLongRunningRequests(handler, g.LongRunningFunc)
	handler = genericapifilters.WithRequestDeadline(handler, g.AuditBackend, g.AuditPolicyRuleEvaluator,
		g.LongRunningFunc, g.Serializer, g.RequestTimeout)
	handler = genericfilters.WithWaitGroup(handler, g.LongRunningFunc, g.NonLongRunningRequestWaitGroup)
	handler = genericfilters.WithWatchTerminationDuringShutdown(handler, shutdown(c.NotAccepting), g.WatchRequestWaitGroup)
	if g.SecureServing != nil && !g.SecureServing.DisableHTTP2 && g.GoawayChance > 0 {
		handler = genericfilters.WithProbabilisticGoaway(handler, g.GoawayChance)
	}
	handler = genericapifilters.WithCacheControl(handler)
	handler = genericfilters.WithHSTS(handler, g.HSTSDirectives)
	if g.ShutdownSendRetryAfter {
		handler = genericfilters.WithRetryAfter(handler, c.NotAccepting)
	}
	handler = genericfilters.WithHTTPLogging(handler)
	handler = genericapifilters.WithLatencyTrackers(handler)
	if g.FeatureGate.Enabled(genericfeatures.APIServingWithRoutine) {
		handler = routine.WithRoutine(handler, g.LongRunningFunc)
	}
	handler = genericfilters.WithPanicRecovery(handler, g.RequestInfoResolver)
	return withBeginning(handler, g.RequestInfoResolver)
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
	go func() {
		select {
		case <-signal.ShuttingDown():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
