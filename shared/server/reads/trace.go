package reads

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// maxTracedUserAgent bounds the user agent in a span, in bytes.
const maxTracedUserAgent = 1024

// startSpan returns req with a span of this name, as upstream's handlers begin one, and the span.
// If the request is not sampled it returns req and nil.
//
// A span that is not ended is not exported. If the fallback answers, it begins its own.
func startSpan(req *http.Request, name string) (*http.Request, trace.Span) {
	ctx := req.Context()
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsSampled() {
		return req, nil
	}
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return req, nil
	}
	client, agent := "unknown", utilnet.GetHTTPClient(req)
	if ip := utilnet.GetClientIP(req); ip != nil {
		client = ip.String()
	}
	ctx, span := parent.TracerProvider().Tracer("triune.dev/shared/server/reads").Start(ctx, name, trace.WithAttributes(
		attribute.String("accept", req.Header.Get("Accept")),
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)),
		attribute.String("client", client),
		attribute.String("api-group", info.APIGroup),
		attribute.String("api-version", info.APIVersion),
		attribute.String("name", info.Name),
		attribute.String("subresource", info.Subresource),
		attribute.String("namespace", info.Namespace),
		attribute.String("protocol", req.Proto),
		attribute.String("resource", info.Resource),
		attribute.String("scope", metrics.CleanScope(info)),
		attribute.String("url", req.URL.Path),
		attribute.String("user-agent", agent[:min(len(agent), maxTracedUserAgent)]),
		attribute.String("verb", metrics.NormalizedVerb(req))))
	return req.WithContext(ctx), span
}

// endSpan ends the span of a request that was served.
func endSpan(span trace.Span, served bool) {
	if span != nil && served {
		span.End()
	}
}
