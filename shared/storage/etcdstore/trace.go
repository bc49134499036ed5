package etcdstore

import (
	"context"
	"reflect"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/tracing"
)

// slowOperation is the duration from which an operation is logged with its
// steps, whether or not traces are exported.
const slowOperation = 500 * time.Millisecond

// traceWrite opens a span for an operation that writes an object; the returned function ends
// it. Spans have the names and attributes of those of k8s.io/apiserver/pkg/storage/etcd3, which
// has none for Delete.
func (s *Store) traceWrite(ctx context.Context, operation, key string, object runtime.Object) (context.Context, func()) {
	ctx, span := tracing.Start(ctx, operation,
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)),
		attribute.String("key", key),
		attribute.String("type", reflect.TypeOf(object).String()),
		attribute.String("group", s.resource.Group),
		attribute.String("resource", s.resource.Resource))
	return ctx, func() { span.End(slowOperation) }
}

// listSpans are the names of the spans of traceList, by whether the list is recursive.
var listSpans = map[bool]string{false: "List(recursive=false) etcd3", true: "List(recursive=true) etcd3"}

// traceList opens a span for GetList; the returned function ends it.
func traceList(ctx context.Context, key string, opts *storage.ListOptions) (context.Context, func()) {
	ctx, span := tracing.Start(ctx, listSpans[opts.Recursive],
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)),
		attribute.String("key", key),
		attribute.String("resourceVersion", opts.ResourceVersion),
		attribute.String("resourceVersionMatch", string(opts.ResourceVersionMatch)),
		attribute.Int64("limit", opts.Predicate.Limit),
		attribute.String("continue", opts.Predicate.Continue))
	return ctx, func() { span.End(slowOperation) }
}
