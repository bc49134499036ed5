package filters

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/audit"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/tracing"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/transport/hoptrace"
)

// withTracing traces requests. If traces go nowhere, which is the default, the filter only
// propagates the trace context of the client, to webhooks for example, and requests
// without one skip it: it costs a tenth of the chain.
func withTracing(next http.Handler, provider tracing.TracerProvider, proxies *authn.FrontProxies) http.Handler {
	traced := genericapifilters.WithTracing(next, provider)
	if !tracingEnabled(provider) {
		return &traceContext{traced, next}
	}
	return &traceHop{traced, continueTrace(next, provider), proxies}
}

// traceContext gives requests with a trace context to traced, and all others to next.
type traceContext struct{ traced, next http.Handler }

// ServeHTTP implements http.Handler.
func (t *traceContext) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := t.next
	// The headers of W3C Trace Context and of W3C Baggage.
	if req.Header.Get("Traceparent") != "" || req.Header.Get("Baggage") != "" {
		handler = t.traced
	}
	handler.ServeHTTP(w, req)
}

// traceHop gives requests of a tier that traces them to behind, and all others to edge.
type traceHop struct {
	edge, behind http.Handler
	proxies      *authn.FrontProxies
}

// ServeHTTP implements http.Handler.
func (t *traceHop) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := t.edge
	if len(req.Header[hoptrace.Header]) == 1 && t.proxies.FromTier(req) {
		handler = t.behind
	}
	handler.ServeHTTP(w, req)
}

// continueTrace does what upstream's WithTracing does for a client that may decide what is
// traced, with the trace context of the tier in front.
func continueTrace(next http.Handler, provider tracing.TracerProvider) http.Handler {
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		trace.SpanFromContext(req.Context()).SetAttributes(
			attribute.String("http.target", req.URL.RequestURI()),
			attribute.String("audit-id", audit.GetAuditIDTruncated(req.Context())))
		next.ServeHTTP(w, req)
	})
	return otelhttp.NewHandler(handler, "KubernetesAPI",
		otelhttp.WithPropagators(hoptrace.Propagator{}),
		otelhttp.WithTracerProvider(provider),
		otelhttp.WithSpanNameFormatter(func(_ string, req *http.Request) string { return spanName(req) }))
}

// spanName returns upstream's name of the span of a request: the method, and for resources the
// path without names.
func spanName(req *http.Request) string {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest {
		return req.Method
	}
	path := "/" + info.APIPrefix
	for _, part := range []struct{ value, shown string }{
		{info.APIGroup, info.APIGroup},
		{info.APIVersion, info.APIVersion},
		{info.Namespace, "namespaces/{:namespace}"},
		{info.Resource, info.Resource},
		{info.Name, "{:name}"},
		{info.Subresource, info.Subresource},
	} {
		if part.value != "" {
			path += "/" + part.shown
		}
	}
	return req.Method + " " + path
}
