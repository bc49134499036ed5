package filters

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"triune.dev/shared/server/authn/outage"
	"triune.dev/shared/transport/handover"
)

// beginning gives a request what all filters behind it rely on: the audit context with
// its id, the time at which the request came, the request info, the latencies that its log
// line and audit event name, the audiences of tokens, and a place for the note that its
// credential could not be examined. It is k8s.io/apiserver's WithAuditInit,
// WithRequestReceivedTimestamp, WithRequestInfo, WithLatencyTrackers and a part of
// WithAuthentication in one, for each of them copies the request to change its context.
type beginning struct {
	next     http.Handler
	resolver apirequest.RequestInfoResolver
	// audiences are those of which a token must be for one.
	audiences authenticator.Audiences
	// credential returns what is handed over to the next tier; nil where nothing is.
	credential func(*http.Request) *handover.Credential
}

// ServeHTTP implements http.Handler.
func (b *beginning) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if w, req = b.begin(w, req); req != nil {
		b.next.ServeHTTP(w, req)
	}
}

// auditIDHeader is auditinternal.HeaderAuditID as net/http spells it.
var auditIDHeader = http.CanonicalHeaderKey(auditinternal.HeaderAuditID)

// begin returns no request where it has answered.
func (b *beginning) begin(w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	ctx := audit.WithAuditContext(req.Context())
	auditID := ""
	if named := req.Header[auditIDHeader]; len(named) > 0 {
		auditID = named[0]
	}
	if auditID == "" {
		auditID = uuid.NewString()
	}
	audit.WithAuditID(ctx, types.UID(auditID))
	// A tier behind this one in the same process has the same writer; clients get
	// the id once.
	if header := w.Header(); header.Get(auditIDHeader) == "" {
		header[auditIDHeader] = []string{auditID}
	}
	ctx = apirequest.WithReceivedTimestamp(ctx, time.Now())
	info, err := b.resolver.NewRequestInfo(req)
	if err != nil {
		responsewriters.InternalError(w, req.WithContext(ctx), fmt.Errorf("read the request info: %w", err))
		return nil, nil
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	if len(b.audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, b.audiences)
	}
	if b.credential != nil {
		ctx = handover.With(ctx, b.credential(req))
	}
	ctx = outage.Track(context.WithValue(ctx, stepKey{}, &step{}))
	if info.Verb != "watch" { // which is written to as long as it lasts
		ctx = apirequest.WithLatencyTrackers(ctx)
		w = responsewriter.WrapForHTTP1Or2(&writing{w, ctx})
	}
	return w, req.WithContext(ctx)
}

// forAudiences refuses who is authenticated for none of the audiences. The authenticator
// finds them in the context of the request.
func forAudiences(a genericapiserver.AuthenticationInfo) authenticator.Request {
	if a.Authenticator == nil || len(a.APIAudiences) == 0 {
		return a.Authenticator
	}
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := a.Authenticator.AuthenticateRequest(req)
		// Who has none is not limited to any.
		if err == nil && ok && len(resp.Audiences) > 0 && len(a.APIAudiences.Intersect(resp.Audiences)) == 0 {
			return nil, false, fmt.Errorf("authenticated for the audiences %q, none of which is one of %q", resp.Audiences, a.APIAudiences)
		}
		return resp, ok, err
	})
}

// withoutAudit has nothing noted for an audit event that nobody will get.
func withoutAudit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		next.ServeHTTP(unaudited(nil, w, req))
	})
}

func unaudited(_ *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	if ac := audit.AuditContextFrom(req.Context()); ac != nil {
		_ = ac.Init(audit.RequestAuditConfig{Level: auditinternal.LevelNone}, nil) // or a tier in front has
	}
	return w, req
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
