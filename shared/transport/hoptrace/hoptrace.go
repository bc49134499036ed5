// Package hoptrace continues traces from one tier to the next.
//
// A server must not let clients decide what it traces: it begins a trace of its own and links it
// to that of the client's Traceparent header. The next tier is reached by one of these servers
// alone, and continues its trace. A tier therefore sends its trace context in a header that
// clients cannot send ([Start]), and the next one believes it if it comes from a tier
// ([Propagator]).
//
// All functions are safe for concurrent use.
package hoptrace

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is the request header with the trace context, in the format of Traceparent (W3C Trace
// Context, section 3.2). Proxies of all releases remove X-Remote- headers from requests of
// clients.
const Header = "X-Remote-Traceparent"

// traceparent is the key under which propagation.TraceContext keeps the same.
const traceparent = "traceparent"

// Start begins a span for a request to another tier if ctx is traced, and adds its context to
// header. The caller ends the span.
func Start(ctx context.Context, method, tier string, header http.Header) trace.Span {
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsValid() {
		return parent // of no trace; it ignores everything
	}
	ctx, span := parent.TracerProvider().Tracer("triune.dev/shared/transport/hoptrace").Start(ctx, "HTTP "+method,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("http.request.method", method), attribute.String("peer.service", tier)))
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	header[Header] = []string{carrier[traceparent]}
	return span
}

// SetStatus records the status code of the response.
func SetStatus(span trace.Span, code int) {
	span.SetAttributes(attribute.Int("http.response.status_code", code))
	if code >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// Propagator reads the trace context that Start wrote, and the client's baggage.
type Propagator struct{ propagation.Baggage }

// Extract implements propagation.TextMapPropagator.
func (p Propagator) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	ctx = p.Baggage.Extract(ctx, carrier)
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: carrier.Get(Header)})
}
