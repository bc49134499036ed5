package authn

import (
	"errors"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/utils/clock"

	"triune.dev/shared/transport/distrust"
)

// CertificateConfig configures authentication by certificates.
type CertificateConfig struct {
	// Proxies describes the front proxies. It may be nil.
	Proxies *authenticatorfactory.RequestHeaderConfig
	// Clients holds the CAs of client certificates. It may be nil.
	Clients dynamiccertificates.CAContentProvider
	// Audiences are those of the server.
	Audiences authenticator.Audiences
}

// CacheCertificates returns an authenticator that verifies a certificate once a minute
// instead of at each request. It refuses requests with [ErrFrontProxyWithoutUser], and asks
// next about all requests whose certificate is not cached.
//
// next must try front proxies and then client certificates before anything else, with the
// same configuration, as the authenticators of kube-apiserver do. Then the answers are the
// same as next's.
func CacheCertificates(next authenticator.Request, c CertificateConfig) authenticator.Request {
	if next == nil || c.Proxies == nil && c.Clients == nil {
		return next
	}
	a := &cachingAuthenticator{next: next}
	if p := c.Proxies; p != nil {
		a.proxies = NewFrontProxies(p)
		a.byHeaders = group.NewAuthenticatedGroupAdder(authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			headerrequest.NewDynamic(p.UsernameHeaders, p.UIDHeaders, p.GroupHeaders, p.ExtraHeaderPrefixes)))
	}
	if c.Clients != nil {
		a.clientCA = newCertCache(c.Clients.VerifyOptions, clock.RealClock{})
		a.byCommonName = group.NewAuthenticatedGroupAdder(authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			return requestx509.CommonNameUserConversion(req.TLS.PeerCertificates)
		}))
	}
	return a
}

// cachingAuthenticator is the authenticator of CacheCertificates.
type cachingAuthenticator struct {
	next authenticator.Request
	// proxies and byHeaders are nil without front proxies.
	proxies   *FrontProxies
	byHeaders authenticator.Request
	// clientCA and byCommonName are nil without client CAs.
	clientCA     *certCache
	byCommonName authenticator.Request
}

// AuthenticateRequest implements authenticator.Request.
func (a *cachingAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return a.next.AuthenticateRequest(req)
	}
	proxy, proxyCached := a.proxies.isFrontProxy(req)
	if proxy {
		if !hasUserHeader(a.proxies.config, req.Header) {
			return nil, false, ErrFrontProxyWithoutUser
		}
		// The proxy is trusted, even if its user is refused.
		distrust.RemoveChallenge(req.Header)
		if proxyCached {
			return a.byHeaders.AuthenticateRequest(req)
		}
		return a.next.AuthenticateRequest(req)
	}
	client, clientCached := false, true
	if a.clientCA != nil {
		client, clientCached = a.clientCA.verify(req.TLS.PeerCertificates)
	}
	switch {
	case client && clientCached:
		if response, ok, err := a.byCommonName.AuthenticateRequest(req); ok && err == nil {
			return response, ok, err
		}
	case !client && clientCached && proxyCached:
		return a.withoutCertificate(req)
	}
	return a.next.AuthenticateRequest(req)
}

// errRejectedCertificate refuses requests whose certificate none of the CAs has signed.
var errRejectedCertificate = errors.New("the client's certificate was rejected a moment ago")

// withoutCertificate authenticates a request by a credential other than its certificate,
// which was rejected. A request with a rejected certificate is not anonymous.
func (a *cachingAuthenticator) withoutCertificate(req *http.Request) (*authenticator.Response, bool, error) {
	if len(req.Header["Authorization"]) == 0 && len(req.Header["Sec-Websocket-Protocol"]) == 0 {
		return nil, false, errRejectedCertificate
	}
	own := req.WithContext(req.Context())
	own.TLS = nil
	response, ok, err := a.next.AuthenticateRequest(own)
	if ok && err == nil && response.User.GetName() == user.Anonymous {
		return nil, false, errRejectedCertificate
	}
	return response, ok, err
}
