package hoptrace

import (
	"net/http"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func TestTraceContinues(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))
	ctx, root := provider.Tracer("test").Start(t.Context(), "edge")
	header := http.Header{}
	span := Start(ctx, http.MethodGet, "core", header)
	defer span.End()

	header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") // of the client
	got := trace.SpanContextFromContext(Propagator{}.Extract(t.Context(), propagation.HeaderCarrier(header)))
	if got.TraceID() != root.SpanContext().TraceID() || got.SpanID() != span.SpanContext().SpanID() || !got.IsSampled() || !got.IsRemote() {
		t.Errorf("trace %s, span %s: want those of the hop, %s and %s", got.TraceID(), got.SpanID(), root.SpanContext().TraceID(), span.SpanContext().SpanID())
	}
}

// A request that is not sampled at the edge is not sampled behind it.
func TestUnsampledContinues(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, _ := provider.Tracer("test").Start(t.Context(), "edge")
	header := http.Header{}
	Start(ctx, http.MethodGet, "core", header).End()
	got := trace.SpanContextFromContext(Propagator{}.Extract(t.Context(), propagation.HeaderCarrier(header)))
	if !got.IsValid() || got.IsSampled() {
		t.Errorf("trace context %v of %q", got, header)
	}
}

func TestUntraced(t *testing.T) {
	header := http.Header{}
	SetStatus(Start(t.Context(), http.MethodGet, "core", header), http.StatusOK)
	if len(header) > 0 {
		t.Errorf("header %q without a trace", header)
	}
	for _, value := range []string{"", "00-0af7651916cd43dd8448eb211c80319c", "\x00"} {
		carrier := propagation.HeaderCarrier{Header: {value}}
		if got := trace.SpanContextFromContext(Propagator{}.Extract(t.Context(), carrier)); got.IsValid() {
			t.Errorf("%q is the trace context %v", value, got)
		}
	}
}
