package etcdstore

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/component-base/tracing"
)

// slowOperation is the duration from which an operation is logged with its
// steps, whether or not traces are exported.
const slowOperation = 500 * time.Millisecond

// trace opens a span for an operation on key; the returned function ends it.
func (s *Store) trace(ctx context.Context, operation, key string) (context.Context, func()) {
	ctx, span := tracing.Start(ctx, operation,
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)),
		attribute.String("key", key),
		attribute.String("group", s.resource.Group),
		attribute.String("resource", s.resource.Resource))
	return ctx, func() { span.End(slowOperation) }
}
