// Package peer makes the requests that a tier sends in its own name.
//
// The way to another tier is an [http.Handler] that takes requests with the user
// in their context: a reverse proxy that asserts this user over mutual TLS, or
// the tier's own handler in the same process. The handler needs more than a
// request, a user, the request info and the time of arrival, which a chain would
// have put there. [As] stands in for the chain, and [Config] does so for clients
// of client-go.
package peer

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"triune.dev/shared/inprocess"
	"triune.dev/shared/pki"
)

// UserPrefix begins the name under which a tier talks to the others.
const UserPrefix = pki.TierPrefix

// User is who a tier is to the other tiers. What it may do there is written in package authz,
// for it reads RBAC rules, webhook configurations and whatever else decides about requests,
// and reviews tokens, before any role could have been bound to it.
func User(tier string) user.Info {
	return &user.DefaultInfo{Name: UserPrefix + tier, Groups: []string{user.AllAuthenticated}}
}

// TierOf returns the tier whose certificate of the front-proxy CA leaf is: its common name
// is that of [User].
func TierOf(leaf *x509.Certificate) (tier string, ok bool) {
	return strings.CutPrefix(leaf.Subject.CommonName, UserPrefix)
}

// Loopback returns a configuration for clients of the tier itself, with full rights and
// without a socket.
func Loopback(tier string, own http.Handler) *rest.Config {
	who := &user.DefaultInfo{Name: UserPrefix + tier, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	return config(tier, who, own)
}

// Config returns a configuration for clients that call way in the name of the
// given tier. Built-in types travel as protobuf.
func Config(tier string, way http.Handler) *rest.Config { return config(tier, User(tier), way) }

func config(tier string, who user.Info, way http.Handler) *rest.Config {
	handler := As(who, audited(way))
	config := inprocess.Config(func() http.Handler { return handler }, "")
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + tier
	return config
}

// audited has the tier that serves a request audit it, as kube-apiserver audits what its
// loopback client does. In another process that tier would do so anyhow.
func audited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := audit.WithAuditContext(req.Context())
		audit.WithAuditID(ctx, types.UID(uuid.NewString()))
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// As returns a handler that calls next in the name of who, whatever the request
// says about its sender.
//
// The request next sees has a context of its own: it ends with the caller's, and
// holds none of its values. Many such requests are made while another one is
// served, and must not inherit its user, audit event, request info or trace: in
// one process the next tier's chain would take them for its own. For the same
// reason the headers that carry an audit id or a trace are left out.
func As(who user.Info, next http.Handler) http.Handler {
	resolver := &request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, err := resolver.NewRequestInfo(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx := context.WithValue(withoutValues{req.Context()}, ownKey{}, true)
		ctx = request.WithReceivedTimestamp(ctx, time.Now())
		ctx = request.WithRequestInfo(request.WithUser(ctx, who), info)
		own := req.WithContext(ctx)
		own.Header = req.Header.Clone()
		for _, name := range tracking {
			delete(own.Header, name)
		}
		next.ServeHTTP(w, own)
	})
}

type ownKey struct{}

// Own reports whether ctx is of a request that [As] has made.
func Own(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

// tracking are the headers that make a request part of another one: the audit id, and
// those of W3C Trace Context and Baggage.
var tracking = []string{"Audit-Id", "Traceparent", "Tracestate", "Baggage"}

// withoutValues is a context that ends with another one and has no values.
type withoutValues struct{ context.Context }

// Value implements [context.Context].
func (withoutValues) Value(any) any { return nil }

// Impatient returns a copy of config whose clients do not wait and ask again where an
// answer has Retry-After. The way to a tier tries its replicas by itself and knows when
// there are none; whoever waits for a review shall hear of that at once.
func Impatient(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return impatient{next} })
	return config
}

// impatient hides Retry-After, on which client-go would wait and ask again.
type impatient struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (i impatient) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := i.next.RoundTrip(req)
	if err == nil {
		res.Header.Del("Retry-After")
	}
	return res, err
}
