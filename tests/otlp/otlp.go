// Package otlp has a collector of traces for tests.
package otlp

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"sync"

	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span as it was exported.
type Span struct {
	// Trace, ID and Parent are in hexadecimal; a root has no Parent.
	Trace, ID, Parent string
	Name              string
	// Kind is that of OpenTelemetry, such as SPAN_KIND_SERVER.
	Kind string
	// Attributes has string values; those of other types are "".
	Attributes map[string]string
	// Links are the IDs of linked traces.
	Links []string
}

// Collector receives spans over OTLP. It is safe for concurrent use.
type Collector struct {
	collectortrace.UnimplementedTraceServiceServer
	// Address is the host and port for --tracing-config-file.
	Address string
	server  *grpc.Server

	mu    sync.Mutex
	spans []Span // guarded by mu
}

// Start starts a collector on a port of the loopback address. The caller stops it.
func Start() (*Collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the collector: %w", err)
	}
	c := &Collector{Address: listener.Addr().String(), server: grpc.NewServer()}
	collectortrace.RegisterTraceServiceServer(c.server, c)
	go func() { _ = c.server.Serve(listener) }() // until Stop
	return c, nil
}

// Stop stops the collector.
func (c *Collector) Stop() { c.server.Stop() }

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Export implements the service of OTLP.
func (c *Collector) Export(_ context.Context, req *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				received := Span{
					Trace: hex.EncodeToString(span.TraceId), ID: hex.EncodeToString(span.SpanId), Parent: hex.EncodeToString(span.ParentSpanId),
					Name: span.Name, Kind: span.Kind.String(), Attributes: map[string]string{},
				}
				for _, attribute := range span.Attributes {
					received.Attributes[attribute.Key] = attribute.Value.GetStringValue()
				}
				for _, link := range span.Links {
					received.Links = append(received.Links, hex.EncodeToString(link.TraceId))
				}
				c.spans = append(c.spans, received)
			}
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}
