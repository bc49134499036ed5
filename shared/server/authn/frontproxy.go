package authn

import (
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/utils/clock"

	"triune.dev/shared/transport/tierclient"
)

// ErrBareFrontProxy is why a request is refused that comes over a front-proxy
// certificate and names no user.
//
// kube-apiserver lets such a request fall through to the anonymous user, or to
// a bearer token beside it. But a front proxy always speaks for somebody: a
// request without a user is a broken proxy, or a proxy that has been talked into
// dropping a header, and must not be served as somebody else's.
//
// A certificate is a front proxy's when the front-proxy CA vouches for it and
// its common name is an allowed one, or no names are configured.
var ErrBareFrontProxy = errors.New("a front-proxy certificate without a user header")

func namesUser(config *authenticatorfactory.RequestHeaderConfig, header http.Header) bool {
	return slices.ContainsFunc(config.UsernameHeaders.Value(), func(name string) bool { return header.Get(name) != "" })
}

// FrontProxies recognizes front proxies by their certificates. A nil one recognizes none.
// Its methods may be called concurrently.
type FrontProxies struct {
	config *authenticatorfactory.RequestHeaderConfig
	ca     *verdicts
}

// NewFrontProxies returns the front proxies of config; nil if that is nil or has no CA.
func NewFrontProxies(config *authenticatorfactory.RequestHeaderConfig) *FrontProxies {
	if config == nil || config.CAContentProvider == nil {
		return nil
	}
	return &FrontProxies{config, newVerdicts(config.CAContentProvider.VerifyOptions, clock.RealClock{})}
}

// Sent reports whether req came over a connection of a front proxy or of another tier. Such
// a connection carries the requests of many clients.
func (f *FrontProxies) Sent(req *http.Request) bool {
	trusted, _ := f.vouches(req)
	return trusted && (f.allowed(req.TLS.PeerCertificates[0]) || isTier(req.TLS.PeerCertificates[0]))
}

// sent reports whether req came over a connection of a front proxy, and whether that was
// known without a signature check.
func (f *FrontProxies) sent(req *http.Request) (sent, known bool) {
	trusted, known := f.vouches(req)
	return trusted && f.allowed(req.TLS.PeerCertificates[0]), known
}

// tier returns the name of the tier that has sent req and is no front proxy.
func (f *FrontProxies) tier(req *http.Request) (string, bool) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return "", false
	}
	leaf := req.TLS.PeerCertificates[0]
	name, ok := tierclient.TierOf(leaf)
	if !ok || f.allowed(leaf) {
		return "", false
	}
	trusted, _ := f.vouches(req)
	return name, trusted
}

// vouches reports whether the front-proxy CA has signed the certificate of req, and whether
// that was known without a signature check.
func (f *FrontProxies) vouches(req *http.Request) (trusted, known bool) {
	if f == nil || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return false, true
	}
	return f.ca.trusts(req.TLS.PeerCertificates)
}

// allowed reports whether a certificate of the front-proxy CA may assert users: one with an
// allowed common name, or where no names are configured any but a tier's.
func (f *FrontProxies) allowed(leaf *x509.Certificate) bool {
	names := f.config.AllowedClientNames.Value()
	return slices.Contains(names, leaf.Subject.CommonName) || len(names) == 0 && !isTier(leaf)
}

func isTier(leaf *x509.Certificate) bool {
	_, ok := tierclient.TierOf(leaf)
	return ok
}

// Asserted returns the headers by which req names a user, as front proxies do; nil if it
// names none.
func (f *FrontProxies) Asserted(req *http.Request) http.Header {
	if f == nil || !namesUser(f.config, req.Header) {
		return nil
	}
	asserted := http.Header{}
	for name, values := range req.Header {
		if f.names(name) {
			asserted[name] = values
		}
	}
	return asserted
}

// clearNames removes the headers by which front proxies name a user.
func (f *FrontProxies) clearNames(header http.Header) {
	for name := range header {
		if f.names(name) {
			delete(header, name)
		}
	}
}

// names reports whether the header of this name tells of a user where a front proxy sends it.
func (f *FrontProxies) names(header string) bool {
	same := func(name string) bool { return strings.EqualFold(name, header) }
	begins := func(prefix string) bool {
		return len(header) >= len(prefix) && strings.EqualFold(header[:len(prefix)], prefix)
	}
	return slices.ContainsFunc(f.config.UsernameHeaders.Value(), same) ||
		slices.ContainsFunc(f.config.UIDHeaders.Value(), same) ||
		slices.ContainsFunc(f.config.GroupHeaders.Value(), same) ||
		slices.ContainsFunc(f.config.ExtraHeaderPrefixes.Value(), begins)
}
