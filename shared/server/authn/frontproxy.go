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

// ErrFrontProxyWithoutUser refuses requests that come with a front-proxy certificate but
// name no user.
//
// kube-apiserver authenticates such a request as the anonymous user, or by a bearer token.
// But a front proxy always acts for a user: without one, the proxy is broken, or a client
// has made it drop a header, and the request must not be served as another user's.
//
// A certificate belongs to a front proxy if the front-proxy CA has signed it and its common
// name is allowed, or no names are configured.
var ErrFrontProxyWithoutUser = errors.New("a front-proxy certificate without a user header")

func hasUserHeader(config *authenticatorfactory.RequestHeaderConfig, header http.Header) bool {
	return slices.ContainsFunc(config.UsernameHeaders.Value(), func(name string) bool { return header.Get(name) != "" })
}

// FrontProxies recognizes front proxies by their certificates. A nil *FrontProxies
// recognizes none. It is safe for concurrent use.
type FrontProxies struct {
	config *authenticatorfactory.RequestHeaderConfig
	ca     *certCache
}

// NewFrontProxies returns the front proxies of config, or nil if config is nil or has no CA.
func NewFrontProxies(config *authenticatorfactory.RequestHeaderConfig) *FrontProxies {
	if config == nil || config.CAContentProvider == nil {
		return nil
	}
	return &FrontProxies{config, newCertCache(config.CAContentProvider.VerifyOptions, clock.RealClock{})}
}

// Proxied reports whether req came over a connection of a front proxy or of another tier.
// Such a connection carries the requests of many clients.
func (f *FrontProxies) Proxied(req *http.Request) bool {
	signed, _ := f.verify(req)
	return signed && (f.mayAssert(req.TLS.PeerCertificates[0]) || isTier(req.TLS.PeerCertificates[0]))
}

// FromTier reports whether req came over a connection of another tier, which is not any front
// proxy: a tier removes from the requests of clients what only tiers may send.
func (f *FrontProxies) FromTier(req *http.Request) bool {
	signed, _ := f.verify(req)
	return signed && isTier(req.TLS.PeerCertificates[0])
}

// isFrontProxy reports whether req came over a connection of a front proxy, and whether
// that was known without a signature check.
func (f *FrontProxies) isFrontProxy(req *http.Request) (proxy, cached bool) {
	signed, cached := f.verify(req)
	return signed && f.mayAssert(req.TLS.PeerCertificates[0]), cached
}

// tierOf returns the name of the tier that sent req. A tier that is also a front proxy does
// not count.
func (f *FrontProxies) tierOf(req *http.Request) (string, bool) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return "", false
	}
	leaf := req.TLS.PeerCertificates[0]
	name, ok := tierclient.TierOf(leaf)
	if !ok || f.mayAssert(leaf) {
		return "", false
	}
	signed, _ := f.verify(req)
	return name, signed
}

// verify reports whether the front-proxy CA has signed the certificate of req, and whether
// that was known without a signature check.
func (f *FrontProxies) verify(req *http.Request) (signed, cached bool) {
	if f == nil || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return false, true
	}
	return f.ca.verify(req.TLS.PeerCertificates)
}

// mayAssert reports whether a certificate of the front-proxy CA may assert users: its common
// name must be allowed. If no names are configured, any but a tier's is.
func (f *FrontProxies) mayAssert(leaf *x509.Certificate) bool {
	names := f.config.AllowedClientNames.Value()
	return slices.Contains(names, leaf.Subject.CommonName) || len(names) == 0 && !isTier(leaf)
}

func isTier(leaf *x509.Certificate) bool {
	_, ok := tierclient.TierOf(leaf)
	return ok
}

// AssertedHeaders returns the identity headers of req, or nil if it names no user.
func (f *FrontProxies) AssertedHeaders(req *http.Request) http.Header {
	if f == nil || !hasUserHeader(f.config, req.Header) {
		return nil
	}
	asserted := http.Header{}
	for name, values := range req.Header {
		if f.isIdentityHeader(name) {
			asserted[name] = values
		}
	}
	return asserted
}

// removeIdentityHeaders removes the headers by which front proxies name a user.
func (f *FrontProxies) removeIdentityHeaders(header http.Header) {
	for name := range header {
		if f.isIdentityHeader(name) {
			delete(header, name)
		}
	}
}

// isIdentityHeader reports whether front proxies describe a user with this header.
func (f *FrontProxies) isIdentityHeader(header string) bool {
	equal := func(name string) bool { return strings.EqualFold(name, header) }
	hasPrefix := func(prefix string) bool {
		return len(header) >= len(prefix) && strings.EqualFold(header[:len(prefix)], prefix)
	}
	return slices.ContainsFunc(f.config.UsernameHeaders.Value(), equal) ||
		slices.ContainsFunc(f.config.UIDHeaders.Value(), equal) ||
		slices.ContainsFunc(f.config.GroupHeaders.Value(), equal) ||
		slices.ContainsFunc(f.config.ExtraHeaderPrefixes.Value(), hasPrefix)
}
