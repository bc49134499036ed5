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

// withBeginning gives a request what all filters behind it rely on: the audit
// context with its id, the time at which the request came, and the request info. It
// is k8s.io/apiserver's WithAuditInit, WithRequestReceivedTimestamp and
// WithRequestInfo in one, for each of them copies the request to change its context.
func withBeginning(handler http.Handler, resolver apirequest.RequestInfoResolver) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
		info, err := resolver.NewRequestInfo(req)
		if err != nil {
			responsewriters.InternalError(w, req.WithContext(ctx), fmt.Errorf("read the request info: %w", err))
			return
		}
		ctx = apirequest.WithRequestInfo(ctx, info)
		ctx = context.WithValue(ctx, stepKey{}, &step{})
		handler.ServeHTTP(w, req.WithContext(ctx))
	})
}
