package authn

import (
	"crypto/x509"
	"errors"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/utils/clock"
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

// Sent reports whether req came over a connection of a front proxy. Such a connection
// carries the requests of many clients.
func (f *FrontProxies) Sent(req *http.Request) bool {
	sent, _ := f.sent(req)
	return sent
}

// sent also reports whether that was known without a signature check.
func (f *FrontProxies) sent(req *http.Request) (sent, known bool) {
	if f == nil || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return false, true
	}
	chain := req.TLS.PeerCertificates
	sent, known = f.ca.trusts(chain)
	return sent && f.allowed(chain[0]), known
}

// allowed reports whether a certificate of the front-proxy CA has an allowed common name.
func (f *FrontProxies) allowed(leaf *x509.Certificate) bool {
	names := f.config.AllowedClientNames.Value()
	return len(names) == 0 || slices.Contains(names, leaf.Subject.CommonName)
}
