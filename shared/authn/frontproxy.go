package authn

import (
	"crypto/x509"
	"errors"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
)

// ErrBareFrontProxy is why a request is refused that comes over a front-proxy
// certificate and names no user.
var ErrBareFrontProxy = errors.New("a front-proxy certificate without a user header")

// RefuseBareFrontProxy returns an authenticator that refuses requests which a
// front proxy sends in nobody's name, and asks next about all others.
//
// kube-apiserver lets such a request fall through to the anonymous user, or to
// a bearer token beside it. But a front proxy always speaks for somebody: a
// request without a user is a broken proxy, or a proxy that has been talked into
// dropping a header, and must not be served as somebody else's.
//
// A certificate is a front proxy's when the front-proxy CA vouches for it and
// its common name is an allowed one, or no names are configured. config may be
// nil: then there are no front proxies, and next is returned as it is.
func RefuseBareFrontProxy(config *authenticatorfactory.RequestHeaderConfig, next authenticator.Request) authenticator.Request {
	if config == nil || next == nil {
		return next
	}
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if !namesUser(config, req.Header) && fromFrontProxy(config, req) {
			return nil, false, ErrBareFrontProxy
		}
		return next.AuthenticateRequest(req)
	})
}

func namesUser(config *authenticatorfactory.RequestHeaderConfig, header http.Header) bool {
	return slices.ContainsFunc(config.UsernameHeaders.Value(), func(name string) bool { return header.Get(name) != "" })
}

func fromFrontProxy(config *authenticatorfactory.RequestHeaderConfig, req *http.Request) bool {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return false
	}
	leaf := req.TLS.PeerCertificates[0]
	if names := config.AllowedClientNames.Value(); len(names) > 0 && !slices.Contains(names, leaf.Subject.CommonName) {
		return false
	}
	options, ok := config.CAContentProvider.VerifyOptions()
	if !ok {
		return false
	}
	if options.Intermediates == nil && len(req.TLS.PeerCertificates) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, intermediate := range req.TLS.PeerCertificates[1:] {
			options.Intermediates.AddCert(intermediate)
		}
	}
	_, err := leaf.Verify(options)
	return err == nil
}
