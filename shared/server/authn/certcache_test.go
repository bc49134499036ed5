package authn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testingclock "k8s.io/utils/clock/testing"

	"triune.dev/shared/process/pki"
)

// TestCachedResultsExpire after their TTL or with the certificate, whichever is first.
func TestCachedResultsExpire(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.LoadPool(made.FrontProxyCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	chain := newTLSRequest(t, made.FrontProxyClient, nil).TLS.PeerCertificates
	now := testingclock.NewFakePassiveClock(time.Now())
	options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	v := newCertCache(func() (x509.VerifyOptions, bool) { return options, true }, now)
	expect := func(when string, wantSigned, wantCached bool) {
		t.Helper()
		if signed, cached := v.verify(chain); signed != wantSigned || cached != wantCached {
			t.Errorf("%s: signed %t, cached %t; want %t, %t", when, signed, cached, wantSigned, wantCached)
		}
	}
	expect("at first", true, false)
	expect("then", true, true)
	now.SetTime(now.Now().Add(verifiedTTL))
	expect("after the TTL", true, false)
	now.SetTime(now.Now().Add(-time.Second))
	expect("after the clock was set back", true, false)
	now.SetTime(chain[0].NotAfter.Add(-time.Second))
	expect("a second before the certificate expires", true, false)
	expect("in that second", true, true)
	now.SetTime(chain[0].NotAfter.Add(time.Second))
	expect("after it has expired", false, false)
	expect("again", false, true)
	now.SetTime(now.Now().Add(rejectedTTL))
	expect("after the TTL of the rejection", false, false)
}

// TestCertCacheIsBounded, whatever certificates clients present.
func TestCertCacheIsBounded(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.LoadPool(made.FrontProxyCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	leaf := newTLSRequest(t, made.FrontProxyClient, nil).TLS.PeerCertificates[0]
	v := newCertCache(func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, testingclock.NewFakePassiveClock(time.Now()))
	strangers, err := pki.LoadPool(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	ours := roots
	roots = strangers
	for range 10 {
		if signed, cached := v.verify([]*x509.Certificate{leaf}); signed || cached {
			t.Fatalf("of another CA: signed %t, cached %t", signed, cached)
		}
	}
	if got := len(v.verified); got != 0 {
		t.Errorf("%d certificates of another CA are cached as verified", got)
	}
	roots = ours
	for range maxVerifiedCerts + 10 {
		other := *leaf // as another connection parses it
		if signed, cached := v.verify([]*x509.Certificate{&other}); !signed || cached {
			t.Fatalf("signed %t, cached %t", signed, cached)
		}
	}
	if got := len(v.verified); got > maxVerifiedCerts {
		t.Errorf("%d certificates are cached, want at most %d", got, maxVerifiedCerts)
	}
}

// newCostlyChain returns an unsigned chain whose verification checks many signatures: each of
// its intermediates could have signed the leaf.
func newCostlyChain(t *testing.T, intermediates int) []*x509.Certificate {
	t.Helper()
	issuer := pkix.Name{CommonName: "issuer"}
	made := func(subject pkix.Name, ca bool, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = key
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: ca, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{Subject: issuer, SerialNumber: big.NewInt(2)}, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return certificate, key
	}
	other, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := made(pkix.Name{CommonName: "mallory"}, false, other)
	chain := []*x509.Certificate{leaf}
	for range intermediates {
		intermediate, _ := made(issuer, true, nil)
		chain = append(chain, intermediate)
	}
	return chain
}

// TestRejectedChainsAreVerifiedOnce per connection and TTL, however costly that is, with the
// same result for the request.
func TestRejectedChainsAreVerifiedOnce(t *testing.T) {
	f := newTierFixture(t, []string{"our-proxy"}, "aggregator")
	chain := newCostlyChain(t, 20)
	send := func(header http.Header) []string {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil)
		req.TLS = &tls.ConnectionState{PeerCertificates: chain}
		req.Header = header
		return f.identify(req)
	}
	began := time.Now()
	send(http.Header{})
	once := time.Since(began)
	// On a slow machine rejectedTTL may pass, and the chain is verified again.
	const times = 10
	began = time.Now()
	for range times {
		for name, test := range map[string]struct {
			header http.Header
			want   []string
		}{
			"nothing":             {http.Header{}, []string{"error"}},
			"a token":             {http.Header{"Authorization": {"Bearer " + staticToken}}, []string{"bob", "system:authenticated"}},
			"a wrong token":       {http.Header{"Authorization": {"Bearer wrong"}}, []string{"error"}},
			"something else":      {http.Header{"Authorization": {"Basic YTpi"}}, []string{"error"}},
			"another protocol":    {http.Header{"Sec-Websocket-Protocol": {"v4.channel.k8s.io"}}, []string{"error"}},
			"a user and no proxy": {http.Header{"X-Remote-User": {"admin"}}, []string{"error"}},
		} {
			if diff := cmp.Diff(test.want, send(test.header)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", name, diff)
			}
		}
	}
	if took := time.Since(began); took > times/2*once {
		t.Errorf("%d requests took %v, the first one %v", 6*times, took, once)
	}
}
