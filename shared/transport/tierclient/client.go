// Package tierclient sends requests on a tier's own behalf to other tiers.
//
// Another tier is reached through an [http.Handler] that takes the user from the request's
// context: a reverse proxy that asserts this user over mutual TLS, or the tier's own handler in
// the same process. The handler requires a user, the request info and the time of arrival,
// which a handler chain would have set. [As] sets them for any handler, and [Config] and
// [Loopback] do so for clients of client-go. All functions are safe for concurrent use.
package tierclient

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

	"triune.dev/shared/process/pki"
	"triune.dev/shared/transport/loopback"
)

// UserPrefix is the prefix of the user names of tiers.
const UserPrefix = pki.TierPrefix

// User returns the user of a tier towards other tiers. Package authz defines its rights,
// because the tier reads RBAC rules, webhook configurations and other inputs of decisions, and
// reviews tokens, before a role could be bound to it.
func User(tier string) user.Info {
	return &user.DefaultInfo{Name: UserPrefix + tier, Groups: []string{user.AllAuthenticated}}
}

// TierOf returns the tier that a certificate of the front-proxy CA belongs to. Its common name
// is the name of [User].
func TierOf(leaf *x509.Certificate) (tier string, ok bool) {
	return strings.CutPrefix(leaf.Subject.CommonName, UserPrefix)
}

// Loopback returns a configuration for clients of the tier itself, with full rights and without
// a socket.
func Loopback(tier string, own http.Handler) *rest.Config {
	u := &user.DefaultInfo{Name: UserPrefix + tier, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	return config(tier, u, own)
}

// Config returns a configuration for clients that call handler on behalf of the given tier.
// Built-in types are encoded as protobuf.
func Config(tier string, handler http.Handler) *rest.Config { return config(tier, User(tier), handler) }

func config(tier string, u user.Info, handler http.Handler) *rest.Config {
	signed := As(u, audited(handler))
	config := loopback.Config(func() http.Handler { return signed }, "")
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + tier
	return config
}

// audited makes the serving tier audit a request, as kube-apiserver audits the requests of its
// loopback client. In another process the tier would do so anyway.
func audited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := audit.WithAuditContext(req.Context())
		audit.WithAuditID(ctx, types.UID(uuid.NewString()))
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// As returns a handler that calls next on behalf of u, whatever the request says about its
// sender.
//
// The request that next gets has its own context, which ends with that of the caller but has
// none of its values. Many such requests are made while another one is served, and must not
// inherit its user, audit event, request info or trace: in a single process, the chain of the
// next tier would take them for its own. For the same reason, headers that carry an audit ID or
// a trace are removed.
func As(u user.Info, next http.Handler) http.Handler {
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
		ctx = request.WithRequestInfo(request.WithUser(ctx, u), info)
		own := req.WithContext(ctx)
		own.Header = req.Header.Clone()
		for _, name := range tracking {
			delete(own.Header, name)
		}
		next.ServeHTTP(w, own)
	})
}

type ownKey struct{}

// Own reports whether ctx belongs to a request made through [As].
func Own(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

// tracking lists the headers that make a request part of another one: the audit ID, and those
// of W3C Trace Context and Baggage.
var tracking = []string{"Audit-Id", "Traceparent", "Tracestate", "Baggage"}

// ClientPortHeader is the header in which a tier passes on the port of the client, beside the
// address in X-Forwarded-For. Proxies of all releases remove X-Remote- headers from requests of
// clients.
const ClientPortHeader = "X-Remote-Port"

// withoutValues is a context without values that ends with another one.
type withoutValues struct{ context.Context }

// Value implements [context.Context].
func (withoutValues) Value(any) any { return nil }

// WithoutRetries returns a copy of config whose clients do not retry on Retry-After. The
// handler of a tier tries its replicas itself and knows when there are none; a caller that
// waits for a review must learn that at once.
func WithoutRetries(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return noRetryAfter{next} })
	return config
}

// noRetryAfter removes Retry-After, which makes client-go wait and retry.
type noRetryAfter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t noRetryAfter) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	if err == nil {
		res.Header.Del("Retry-After")
	}
	return res, err
}
