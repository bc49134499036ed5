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

// Certificates says whose certificates authenticate requests.
type Certificates struct {
	// Proxies is about front proxies. Nil if there are none.
	Proxies *authenticatorfactory.RequestHeaderConfig
	// Clients holds the CAs of client certificates. Nil if there are none.
	Clients dynamiccertificates.CAContentProvider
	// Audiences are the server's own.
	Audiences authenticator.Audiences
}

// Remember returns an authenticator that answers for certificates which it has
// seen next accept or refuse a moment ago, refuses what [ErrBareFrontProxy] tells of, and
// asks next about all others.
//
// next must try front proxies and then client certificates before anything else,
// with what c says, as the authenticators of kube-apiserver do. So the answer is
// next's, without the signature check that it makes at each request.
func (c Certificates) Remember(next authenticator.Request) authenticator.Request {
	if next == nil || c.Proxies == nil && c.Clients == nil {
		return next
	}
	r := &remembering{next: next}
	if p := c.Proxies; p != nil {
		r.proxies = NewFrontProxies(p)
		r.asserted = group.NewAuthenticatedGroupAdder(authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			headerrequest.NewDynamic(p.UsernameHeaders, p.UIDHeaders, p.GroupHeaders, p.ExtraHeaderPrefixes)))
	}
	if c.Clients != nil {
		r.clientCA = newVerdicts(c.Clients.VerifyOptions, clock.RealClock{})
		r.named = group.NewAuthenticatedGroupAdder(authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			return requestx509.CommonNameUserConversion(req.TLS.PeerCertificates)
		}))
	}
	return r
}

// remembering is what Remember returns. proxies and asserted are nil without front
// proxies, clientCA and named without client CAs.
type remembering struct {
	next            authenticator.Request
	proxies         *FrontProxies
	clientCA        *verdicts
	asserted, named authenticator.Request
}

// AuthenticateRequest implements authenticator.Request.
func (r *remembering) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return r.next.AuthenticateRequest(req)
	}
	proxy, proxyKnown := r.proxies.sent(req)
	if proxy {
		if !namesUser(r.proxies.config, req.Header) {
			return nil, false, ErrBareFrontProxy
		}
		// Whatever becomes of the user, the proxy is believed.
		distrust.Forget(req.Header)
		if proxyKnown {
			return r.asserted.AuthenticateRequest(req)
		}
		return r.next.AuthenticateRequest(req)
	}
	client, clientKnown := false, true
	if r.clientCA != nil {
		client, clientKnown = r.clientCA.trusts(req.TLS.PeerCertificates)
	}
	switch {
	case client && clientKnown:
		if response, ok, err := r.named.AuthenticateRequest(req); ok && err == nil {
			return response, ok, err
		}
	case !client && clientKnown && proxyKnown:
		return r.withoutCertificate(req)
	}
	return r.next.AuthenticateRequest(req)
}

// errRefusedCertificate is why a request is refused whose certificate is of none of the CAs.
var errRefusedCertificate = errors.New("the client's certificate was refused a moment ago")

// withoutCertificate asks next about a request of which only another credential can be right.
// A certificate that is wrong is not anonymous.
func (r *remembering) withoutCertificate(req *http.Request) (*authenticator.Response, bool, error) {
	if len(req.Header["Authorization"]) == 0 && len(req.Header["Sec-Websocket-Protocol"]) == 0 {
		return nil, false, errRefusedCertificate
	}
	own := req.WithContext(req.Context())
	own.TLS = nil
	response, ok, err := r.next.AuthenticateRequest(own)
	if ok && err == nil && response.User.GetName() == user.Anonymous {
		return nil, false, errRefusedCertificate
	}
	return response, ok, err
}
