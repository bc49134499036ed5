package chain

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// beginning gives a request what all filters behind it rely on: the audit context with
// its id, the time at which the request came, and the request info. It is
// k8s.io/apiserver's WithAuditInit, WithRequestReceivedTimestamp and WithRequestInfo in
// one, for each of them copies the request to change its context.
type beginning struct {
	next     http.Handler
	resolver apirequest.RequestInfoResolver
}

// ServeHTTP implements http.Handler.
func (b *beginning) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req = b.begin(w, req); req != nil {
		b.next.ServeHTTP(w, req)
	}
}

// begin returns nil where it has answered.
func (b *beginning) begin(w http.ResponseWriter, req *http.Request) *http.Request {
	ctx := audit.WithAuditContext(req.Context())
	auditID := req.Header.Get(auditinternal.HeaderAuditID)
	if auditID == "" {
		auditID = uuid.NewString()
	}
	audit.WithAuditID(ctx, types.UID(auditID))
	// A tier behind this one in the same process has the same writer; clients get
	// the id once.
	if header := w.Header(); header.Get(auditinternal.HeaderAuditID) == "" {
		header.Set(auditinternal.HeaderAuditID, auditID)
	}
	ctx = apirequest.WithReceivedTimestamp(ctx, time.Now())
	info, err := b.resolver.NewRequestInfo(req)
	if err != nil {
		responsewriters.InternalError(w, req.WithContext(ctx), fmt.Errorf("read the request info: %w", err))
		return nil
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	return req.WithContext(context.WithValue(ctx, stepKey{}, &step{}))
}
