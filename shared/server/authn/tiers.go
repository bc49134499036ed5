package authn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/handover"
	"triune.dev/shared/transport/tierclient"
)

// handoverTier is the only tier that may hand over the credentials of its clients.
const handoverTier = "aggregator"

var (
	errTierNotAccepted  = errors.New("this tier does not accept requests with that tier's certificate")
	errTierHandover     = errors.New("only the aggregator may hand over credentials")
	errHandoverFromPeer = errors.New("a credential is handed over without the certificate of a tier")
)

// AuthenticateTiers returns an authenticator that recognizes other tiers by their
// certificates, see [tierclient.TierOf]. It authenticates a request as the tier, unless the
// request hands over the credential of a client, which only the aggregator may do. Then next
// examines that credential.
//
// tiers are the names of the tiers that may connect. A tier whose common name is allowed by
// config is a front proxy, which next authenticates.
func AuthenticateTiers(next authenticator.Request, config *authenticatorfactory.RequestHeaderConfig, tiers ...string) authenticator.Request {
	proxies := NewFrontProxies(config)
	if proxies == nil {
		return next
	}
	return &tierAuthenticator{next: next, proxies: proxies, tiers: tiers}
}

type tierAuthenticator struct {
	next    authenticator.Request
	proxies *FrontProxies
	tiers   []string
	chains  chainCache
}

// AuthenticateRequest implements authenticator.Request.
func (t *tierAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	tier, ok := t.proxies.tierOf(req)
	if !ok {
		if _, handed := req.Header[handover.CertificatesHeader]; handed && len(t.tiers) > 0 {
			return nil, false, errHandoverFromPeer
		}
		return t.next.AuthenticateRequest(req)
	}
	if !slices.Contains(t.tiers, tier) {
		return nil, false, errTierNotAccepted
	}
	// The tier is trusted, even if its client is refused.
	distrust.RemoveChallenge(req.Header)
	certificates, asserted, handed, err := handover.Extract(req.Header)
	switch {
	case err != nil:
		return nil, false, err
	case !handed:
		return &authenticator.Response{User: tierclient.User(tier)}, true, nil
	case tier != handoverTier:
		return nil, false, errTierHandover
	}
	return t.authenticateClient(req, certificates, asserted)
}

// authenticateClient has next examine a credential that was handed over.
func (t *tierAuthenticator) authenticateClient(req *http.Request, certificates string, asserted http.Header) (*authenticator.Response, bool, error) {
	chain, cached, err := t.chains.parse(certificates)
	if err != nil {
		return nil, false, err
	}
	t.proxies.removeIdentityHeaders(req.Header)
	maps.Copy(req.Header, asserted)
	own := req.WithContext(req.Context())
	own.TLS = &tls.ConnectionState{
		Version: req.TLS.Version, CipherSuite: req.TLS.CipherSuite, HandshakeComplete: true, PeerCertificates: chain,
	}
	if _, ok := t.proxies.tierOf(own); ok { // tiers are not clients of each other
		return nil, false, errTierNotAccepted
	}
	response, ok, err := t.next.AuthenticateRequest(own)
	if ok && err == nil && !cached && len(chain) > 0 && response.User.GetName() != user.Anonymous {
		t.chains.add(certificates, chain)
	}
	return response, ok, err
}

const (
	maxChains = 1024
	// maxChainBytes bounds the header of a cached chain.
	maxChainBytes = 4 << 10
)

// chainCache caches the parsed form of certificate chains that were handed over. Results in
// a certCache belong to the parsed certificates. The zero value is ready.
type chainCache struct {
	mu     sync.RWMutex
	chains map[string][]*x509.Certificate // by header value; guarded by mu
}

// parse also reports whether the chain was cached.
func (c *chainCache) parse(value string) (chain []*x509.Certificate, cached bool, err error) {
	c.mu.RLock()
	chain, cached = c.chains[value]
	c.mu.RUnlock()
	if !cached {
		chain, err = handover.ParseCertificates(value)
	}
	return chain, cached, err
}

// add caches a chain that has authenticated a user.
func (c *chainCache) add(value string, chain []*x509.Certificate) {
	if len(value) > maxChainBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.chains == nil || len(c.chains) >= maxChains {
		c.chains = map[string][]*x509.Certificate{}
	}
	c.chains[value] = chain
}
