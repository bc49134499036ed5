package filters

import (
	"net/http"
	"net/http/httptest"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/tracing"

	"triune.dev/shared/transport/hoptrace"
)

// A client continues no trace with the header of tiers, and cannot be sampled by it.
func TestClientsAreNoTiers(t *testing.T) {
	const sampled = "0af7651916cd43dd8448eb211c80319c"
	for name, provider := range map[string]tracing.TracerProvider{
		"traced":   sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))),
		"untraced": tracing.NewNoopTracerProvider(),
	} {
		t.Run(name, func(t *testing.T) {
			served := false
			handler := withTracing(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				served = true
				if got := trace.SpanContextFromContext(req.Context()); got.IsSampled() || got.TraceID().String() == sampled {
					t.Errorf("the trace context is %v", got)
				}
			}), provider, nil)
			req := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
			req.Header.Set(hoptrace.Header, "00-"+sampled+"-b7ad6b7169203331-01")
			handler.ServeHTTP(httptest.NewRecorder(), req)
			if !served {
				t.Error("the request was not served")
			}
		})
	}
}
