package etcdstore

import (
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	genericfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
)

// tracingOptions continue the trace of a request into etcd, where tracing is
// configured.
func tracingOptions(c storagebackend.TransportConfig) []grpc.DialOption {
	if c.TracerProvider == nil || !utilfeature.DefaultFeatureGate.Enabled(genericfeatures.APIServerTracing) {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
		otelgrpc.WithPropagators(tracing.Propagators()),
		otelgrpc.WithTracerProvider(c.TracerProvider),
	))}
}
