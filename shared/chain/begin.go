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
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"triune.dev/shared/authn/outage"
)

// beginning gives a request what all filters behind it rely on: the audit context with
// its id, the time at which the request came, the request info, the latencies that its log
// line and audit event name, and a place for the note that its credential could not be
// examined. It is k8s.io/apiserver's WithAuditInit, WithRequestReceivedTimestamp,
// WithRequestInfo and WithLatencyTrackers in one, for each of them copies the request to
// change its context.
type beginning struct {
	next     http.Handler
	resolver apirequest.RequestInfoResolver
}

// ServeHTTP implements http.Handler.
func (b *beginning) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if w, req = b.begin(w, req); req != nil {
		b.next.ServeHTTP(w, req)
	}
}

// begin returns no request where it has answered.
func (b *beginning) begin(w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
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
		return nil, nil
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	ctx = outage.Track(context.WithValue(ctx, stepKey{}, &step{}))
	if info.Verb != "watch" { // which is written to as long as it lasts
		ctx = apirequest.WithLatencyTrackers(ctx)
		w = responsewriter.WrapForHTTP1Or2(&writing{w, ctx})
	}
	return w, req.WithContext(ctx)
}

// writing notes how long it takes to write the answer.
type writing struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *writing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *writing) Write(p []byte) (int, error) {
	began := time.Now()
	n, err := w.ResponseWriter.Write(p)
	apirequest.TrackResponseWriteLatency(w.ctx, time.Since(began))
	return n, err
}
