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
	// verdictLimit bounds the certificates that are remembered by one CA.
	verdictLimit = 4096
	// verdictTime is how long one is remembered. It is short enough for the
	// histogram of the time that client certificates have left, which
	// k8s.io/apiserver keeps where it verifies, to show every client that is active.
	verdictTime = time.Minute
	// refusedChains are remembered, each for refusedTime: it may become valid.
	refusedChains = 1 << 10
	refusedTime   = 10 * time.Second
)

// verdicts remembers which certificates are signed by a CA. To verify one costs
// a signature check, 70 to 100 µs; a client sends thousands of requests with it. One that is
// not signed can cost a hundred checks of a millisecond, with a chain that is made for
// that. It leaves no more behind than a place of a fixed number: anybody can present it.
//
// A verdict is bound to the certificate as the TLS handshake has parsed it, the
// chain that came with it, and the pool of CAs it was checked against: another
// connection may be given it only if all are the same, and a reload of the CAs,
// which makes a new pool, leaves none. It ends before any certificate of its chain
// expires. Its methods may be called concurrently.
type verdicts struct {
	// options are those of the CA, as a dynamiccertificates.CAContentProvider has
	// them: the same pool as long as the file is the same.
	options func() (x509.VerifyOptions, bool)
	clock   clock.PassiveClock

	mu      sync.RWMutex
	known   map[*x509.Certificate]verdict
	refused [refusedChains]refusedChain
}

// refusedChain is a chain of a connection that the CA has not signed, which it does not keep
// alive.
type refusedChain struct {
	chain weak.Pointer[*x509.Certificate]
	roots *x509.CertPool
	until time.Time
}

var chainSeed = maphash.MakeSeed()

type verdict struct {
	roots, intermediates *x509.CertPool
	chain                []*x509.Certificate
	from, until          time.Time
}

func newVerdicts(options func() (x509.VerifyOptions, bool), clock clock.PassiveClock) *verdicts {
	return &verdicts{options: options, clock: clock, known: map[*x509.Certificate]verdict{}}
}

// trusts tells whether the CA has signed the first certificate of chain, and
// whether that was known already. chain must not be empty or changed later.
func (v *verdicts) trusts(chain []*x509.Certificate) (trusted, known bool) {
	options, ok := v.options()
	if !ok {
		return false, false // there is no CA to have refused it
	}
	now := v.clock.Now()
	presented := weak.Make(&chain[0])
	place := &v.refused[maphash.Comparable(chainSeed, presented)%refusedChains]
	v.mu.RLock()
	old, ok := v.known[chain[0]]
	refused := *place
	v.mu.RUnlock()
	if refused.chain == presented && refused.roots == options.Roots && now.Before(refused.until) {
		return false, true
	}
	if ok && old.roots == options.Roots && old.intermediates == options.Intermediates && slices.Equal(old.chain, chain) &&
		!now.Before(old.from) && now.Before(old.until) {
		return true, true
	}
	made := verdict{
		roots: options.Roots, intermediates: options.Intermediates, chain: chain,
		from: now, until: now.Add(verdictTime),
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
		v.mu.Lock()
		defer v.mu.Unlock()
		*place = refusedChain{presented, options.Roots, now.Add(refusedTime)}
		return false, false
	}
	for _, path := range paths {
		for _, certificate := range path {
			if certificate.NotAfter.Before(made.until) {
				made.until = certificate.NotAfter
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) >= verdictLimit {
		v.forgetLocked(now)
	}
	v.known[chain[0]] = made
	return true, false
}

// forgetLocked makes room: what is over goes, and if that is nothing, all does.
func (v *verdicts) forgetLocked(now time.Time) {
	for certificate, old := range v.known {
		if !now.Before(old.until) {
			delete(v.known, certificate)
		}
	}
	if len(v.known) >= verdictLimit {
		clear(v.known)
	}
}
