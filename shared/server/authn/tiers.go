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

// handingOver is the tier that hands the credentials of its clients over.
const handingOver = "aggregator"

// Why a request is refused that comes over a tier's certificate, or as if it did.
var (
	errTierHere     = errors.New("this tier takes no requests over that tier's certificate")
	errTierHandover = errors.New("only the aggregator hands credentials over")
	errHandover     = errors.New("a credential is handed over, but not over the certificate of a tier")
)

// AdmitTiers returns an authenticator that knows the other tiers by their certificates,
// see [tierclient.TierOf]. A request is the tier's own, unless it hands over the credential of a
// client, which the aggregator may: then next examines the credential.
//
// tiers are those who may connect; those whose common names config allows are front proxies,
// and next's business.
func AdmitTiers(next authenticator.Request, config *authenticatorfactory.RequestHeaderConfig, tiers ...string) authenticator.Request {
	proxies := NewFrontProxies(config)
	if proxies == nil {
		return next
	}
	return &tierConnections{next: next, proxies: proxies, tiers: tiers}
}

type tierConnections struct {
	next    authenticator.Request
	proxies *FrontProxies
	tiers   []string
	chains  chains
}

// AuthenticateRequest implements authenticator.Request.
func (t *tierConnections) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	tier, ok := t.proxies.tier(req)
	if !ok {
		if _, handed := req.Header[handover.Header]; handed && len(t.tiers) > 0 {
			return nil, false, errHandover
		}
		return t.next.AuthenticateRequest(req)
	}
	if !slices.Contains(t.tiers, tier) {
		return nil, false, errTierHere
	}
	// Whatever becomes of the client, the tier is believed.
	distrust.Forget(req.Header)
	certificates, asserted, handed, err := handover.Take(req.Header)
	switch {
	case err != nil:
		return nil, false, err
	case !handed:
		return &authenticator.Response{User: tierclient.User(tier)}, true, nil
	case tier != handingOver:
		return nil, false, errTierHandover
	}
	return t.client(req, certificates, asserted)
}

// client has next examine a credential that is handed over.
func (t *tierConnections) client(req *http.Request, certificates string, asserted http.Header) (*authenticator.Response, bool, error) {
	chain, known, err := t.chains.parse(certificates)
	if err != nil {
		return nil, false, err
	}
	t.proxies.clearNames(req.Header)
	maps.Copy(req.Header, asserted)
	own := req.WithContext(req.Context())
	own.TLS = &tls.ConnectionState{
		Version: req.TLS.Version, CipherSuite: req.TLS.CipherSuite, HandshakeComplete: true, PeerCertificates: chain,
	}
	if _, ok := t.proxies.tier(own); ok { // comes itself
		return nil, false, errTierHere
	}
	response, ok, err := t.next.AuthenticateRequest(own)
	if ok && err == nil && !known && len(chain) > 0 && response.User.GetName() != user.Anonymous {
		t.chains.remember(certificates, chain)
	}
	return response, ok, err
}

// maxChains bounds the certificates that are remembered, and maxChain what one has, in bytes
// of its header.
const (
	maxChains = 1024
	maxChain  = 4 << 10
)

// chains remembers certificates that were handed over, parsed: verdicts on them are bound to
// the parsed ones. The zero value is ready.
type chains struct {
	mu    sync.RWMutex
	known map[string][]*x509.Certificate // guarded by mu
}

// parse also reports whether the certificates are remembered.
func (c *chains) parse(value string) (chain []*x509.Certificate, known bool, err error) {
	c.mu.RLock()
	chain, known = c.known[value]
	c.mu.RUnlock()
	if !known {
		chain, err = handover.Parse(value)
	}
	return chain, known, err
}

// remember is called for those by whom somebody has been authenticated.
func (c *chains) remember(value string, chain []*x509.Certificate) {
	if len(value) > maxChain {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxChains {
		c.known = map[string][]*x509.Certificate{}
	}
	c.known[value] = chain
}
