package authn

import (
	"crypto/x509"
	"hash/maphash"
	"slices"
	"sync"
	"time"
	"weak"

	"k8s.io/utils/clock"
)

const (
	// maxVerifiedCerts bounds the verified certificates that are cached for one CA.
	maxVerifiedCerts = 4096
	// verifiedTTL is short enough for the histogram of the remaining lifetime of client
	// certificates, which k8s.io/apiserver fills when it verifies one, to show every
	// active client.
	verifiedTTL = time.Minute
	// maxRejectedChains bounds the rejected chains that are cached for one CA.
	maxRejectedChains = 1 << 10
	// rejectedTTL is short because a rejected chain may become valid.
	rejectedTTL = 10 * time.Second
)

// certCache verifies certificates against a CA and caches the results. A verification
// costs a signature check, 70 to 100 µs, and a client sends thousands of requests with the
// same certificate. A crafted chain that the CA has not signed can cost a hundred checks of
// a millisecond each. Anybody can present one, so rejected chains share a fixed number of
// slots.
//
// A cached result belongs to the certificate as parsed by one TLS handshake, to the chain
// presented with it, and to the CA pool that verified it. A result is reused only if all of
// them are identical; a reload of the CA makes a new pool, which invalidates all results. It
// expires no later than any certificate of the chain. A certCache is safe for concurrent use.
type certCache struct {
	// options returns the verification options of a CA, as CAContentProvider in package
	// dynamiccertificates does: with the same pool until the CA changes.
	options func() (x509.VerifyOptions, bool)
	clock   clock.PassiveClock

	mu       sync.RWMutex // guards the fields below
	verified map[*x509.Certificate]verifiedCert
	rejected [maxRejectedChains]rejectedChain
}

type verifiedCert struct {
	roots, intermediates *x509.CertPool
	chain                []*x509.Certificate
	from, until          time.Time
}

// rejectedChain refers weakly to the chain, so that the cache does not keep it alive.
type rejectedChain struct {
	chain weak.Pointer[*x509.Certificate]
	roots *x509.CertPool
	until time.Time
}

var chainSeed = maphash.MakeSeed()

func newCertCache(options func() (x509.VerifyOptions, bool), clock clock.PassiveClock) *certCache {
	return &certCache{options: options, clock: clock, verified: map[*x509.Certificate]verifiedCert{}}
}

// verify reports whether the CA has signed the first certificate of chain, and whether
// that result was cached. The chain must not be empty, and must not change later.
func (c *certCache) verify(chain []*x509.Certificate) (signed, cached bool) {
	options, ok := c.options()
	if !ok {
		return false, false // there is no CA to verify against
	}
	now := c.clock.Now()
	presented := weak.Make(&chain[0])
	slot := &c.rejected[maphash.Comparable(chainSeed, presented)%maxRejectedChains]
	c.mu.RLock()
	old, ok := c.verified[chain[0]]
	rejected := *slot
	c.mu.RUnlock()
	if rejected.chain == presented && rejected.roots == options.Roots && now.Before(rejected.until) {
		return false, true
	}
	if ok && old.roots == options.Roots && old.intermediates == options.Intermediates && slices.Equal(old.chain, chain) &&
		!now.Before(old.from) && now.Before(old.until) {
		return true, true
	}
	result := verifiedCert{
		roots: options.Roots, intermediates: options.Intermediates, chain: chain,
		from: now, until: now.Add(verifiedTTL),
	}
	if options.Intermediates == nil && len(chain) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, intermediate := range chain[1:] {
			options.Intermediates.AddCert(intermediate)
		}
	}
	options.CurrentTime = now
	paths, err := chain[0].Verify(options)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		*slot = rejectedChain{presented, options.Roots, now.Add(rejectedTTL)}
		return false, false
	}
	for _, path := range paths {
		for _, certificate := range path {
			if certificate.NotAfter.Before(result.until) {
				result.until = certificate.NotAfter
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.verified) >= maxVerifiedCerts {
		c.evictLocked(now)
	}
	c.verified[chain[0]] = result
	return true, false
}

// evictLocked removes expired results or, if there are none, all results.
func (c *certCache) evictLocked(now time.Time) {
	for certificate, old := range c.verified {
		if !now.Before(old.until) {
			delete(c.verified, certificate)
		}
	}
	if len(c.verified) >= maxVerifiedCerts {
		clear(c.verified)
	}
}
