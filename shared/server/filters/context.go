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

// requestContext gives a request the context that all filters behind it rely on: the audit
// context and its id, the time of arrival, the request info, the latency trackers, the
// audiences of tokens, the credential for the next tier, and the state of the filters. It
// does the work of WithAuditInit, WithRequestReceivedTimestamp, WithRequestInfo,
// WithLatencyTrackers and a part of WithAuthentication of k8s.io/apiserver, each of which
// copies the request to change its context.
type requestContext struct {
	next     http.Handler
	resolver apirequest.RequestInfoResolver
	// audiences are those that a token may be for.
	audiences authenticator.Audiences
	// credential returns the credential to hand over to the next tier. It may be nil.
	credential func(*http.Request) *handover.Credential
}

// ServeHTTP implements http.Handler.
func (c *requestContext) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if w, req = c.prepare(w, req); req != nil {
		c.next.ServeHTTP(w, req)
	}
}

// auditIDHeader is auditinternal.HeaderAuditID as net/http spells it.
var auditIDHeader = http.CanonicalHeaderKey(auditinternal.HeaderAuditID)

// prepare returns a nil request if it has answered. It is separate from ServeHTTP, whose
// stack frame stays while next runs.
func (c *requestContext) prepare(w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	ctx := audit.WithAuditContext(req.Context())
	auditID := ""
	if values := req.Header[auditIDHeader]; len(values) > 0 {
		auditID = values[0]
	}
	if auditID == "" {
		auditID = uuid.NewString()
	}
	audit.WithAuditID(ctx, types.UID(auditID))
	// A tier in front in the same process, which has the same writer, may have set it.
	if header := w.Header(); header.Get(auditIDHeader) == "" {
		header[auditIDHeader] = []string{auditID}
	}
	ctx = apirequest.WithReceivedTimestamp(ctx, time.Now())
	info, err := c.resolver.NewRequestInfo(req)
	if err != nil {
		responsewriters.InternalError(w, req.WithContext(ctx), fmt.Errorf("read the request info: %w", err))
		return nil, nil
	}
	ctx = apirequest.WithRequestInfo(ctx, info)
	if len(c.audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, c.audiences)
	}
	if c.credential != nil {
		ctx = handover.NewContext(ctx, c.credential(req))
	}
	ctx = outage.Track(withState(ctx, &requestState{}))
	if info.Verb != "watch" { // its writes are spread over its whole life
		ctx = apirequest.WithLatencyTrackers(ctx)
		w = responsewriter.WrapForHTTP1Or2(&latencyWriter{w, ctx})
	}
	return w, req.WithContext(ctx)
}

// requireAudiences refuses users whose credentials are for none of the audiences. The
// authenticator finds the audiences in the context of the request.
func requireAudiences(a genericapiserver.AuthenticationInfo) authenticator.Request {
	if a.Authenticator == nil || len(a.APIAudiences) == 0 {
		return a.Authenticator
	}
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := a.Authenticator.AuthenticateRequest(req)
		// A credential without audiences is for any.
		if err == nil && ok && len(resp.Audiences) > 0 && len(a.APIAudiences.Intersect(resp.Audiences)) == 0 {
			return nil, false, fmt.Errorf("authenticated for the audiences %q, none of which is one of %q", resp.Audiences, a.APIAudiences)
		}
		return resp, ok, err
	})
}

// withoutAudit keeps handlers from collecting annotations for an audit event that has no
// backend.
func withoutAudit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		next.ServeHTTP(disableAudit(nil, w, req))
	})
}

func disableAudit(_ *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	if ac := audit.AuditContextFrom(req.Context()); ac != nil {
		// An error means that a tier in front has initialized the context.
		_ = ac.Init(audit.RequestAuditConfig{Level: auditinternal.LevelNone}, nil)
	}
	return w, req
}

// latencyWriter tracks the time that writing the answer takes.
type latencyWriter struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *latencyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *latencyWriter) Write(p []byte) (int, error) {
	started := time.Now()
	n, err := w.ResponseWriter.Write(p)
	apirequest.TrackResponseWriteLatency(w.ctx, time.Since(started))
	return n, err
}
