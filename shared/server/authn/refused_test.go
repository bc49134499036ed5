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
)

// costly returns a chain of a stranger for which verification tries many signatures: each of
// its intermediates could be the one that has signed the leaf.
func costly(t *testing.T, intermediates int) []*x509.Certificate {
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

// TestStrangersCertificatesAreVerifiedOnce in a while for each connection, whatever it costs
// to verify them, and what comes of the request is the same.
func TestStrangersCertificatesAreVerifiedOnce(t *testing.T) {
	f := newTierFixture(t, []string{"our-proxy"}, "aggregator")
	chain := costly(t, 20)
	send := func(header http.Header) []string {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil)
		req.TLS = &tls.ConnectionState{PeerCertificates: chain}
		req.Header = header
		return f.whoOf(req)
	}
	began := time.Now()
	send(http.Header{})
	once := time.Since(began)
	// In refusedTime it may be verified again, where the machine is slow.
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
