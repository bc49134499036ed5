package identity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"testing"
	"time"
)

// authority is a CA that signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// clusterAuthority returns the CA of client certificates.
func clusterAuthority(t *testing.T) authority {
	t.Helper()
	pair := load(t, site.pki.ClusterCA)
	return authority{pair.Leaf, pair.PrivateKey.(crypto.Signer)}
}

// newAuthority returns a CA that no server knows.
func newAuthority(t *testing.T) authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate, key}
}

// client issues a client certificate; change may modify it.
func (a authority) client(t *testing.T, subject pkix.Name, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestClientCertificates checks that the common name of a certificate is the user, and that
// a certificate with another signer or purpose is 401.
func TestClientCertificates(t *testing.T) {
	ca, other := clusterAuthority(t), newAuthority(t)
	frank := pkix.Name{CommonName: "frank", Organization: []string{"a", "b"}}
	got := expectUser(t, credential{certificate: ca.client(t, frank, nil)}, "frank")
	if len(got.Groups) != 3 || got.Groups[0] != "a" || got.Groups[1] != "b" {
		t.Errorf("groups %q", got.Groups)
	}
	expectUser(t, credential{certificate: ca.client(t, pkix.Name{CommonName: "Fränk <&>%2e"}, nil)}, "Fränk <&>%2e")
	expectAnonymousRefused(t, credential{certificate: ca.client(t, pkix.Name{CommonName: "system:anonymous"}, nil)})
	for name, certificate := range map[string]*tls.Certificate{
		"no common name":       ca.client(t, pkix.Name{Organization: []string{"system:masters"}}, nil),
		"no subject":           ca.client(t, pkix.Name{}, func(c *x509.Certificate) { c.DNSNames = []string{"frank"} }),
		"of another authority": other.client(t, frank, nil),
		"of itself":            authority{other.certificate, other.key}.client(t, frank, func(c *x509.Certificate) { c.IsCA = true; c.BasicConstraintsValid = true }),
		"for servers":          ca.client(t, frank, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"for code":             ca.client(t, frank, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }),
		"expired":              ca.client(t, frank, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
		"not valid yet":        ca.client(t, frank, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }),
		"of a front proxy":     load(t, site.pki.FrontProxyClient),
		"of a server":          load(t, site.pki.Serving["aggregator"]),
	} {
		t.Run(name, func(t *testing.T) { expectUser(t, credential{certificate: certificate}, "") })
	}
	t.Run("beside a token", func(t *testing.T) {
		expectUser(t, credential{certificate: other.client(t, frank, nil), token: "hook-as:tokened"}, "tokened")
		expectUser(t, credential{certificate: ca.client(t, frank, nil), token: "hook-as:tokened"}, "frank")
		expectUser(t, credential{certificate: ca.client(t, frank, nil), token: "no-such-token"}, "frank")
		expectUser(t, credential{certificate: other.client(t, frank, nil), token: "no-such-token"}, "")
	})
}

// TestClientAuthorityIsReloaded checks that a CA is trusted once it is in the file, and no
// longer trusted once it is removed, also on open connections.
func TestClientAuthorityIsReloaded(t *testing.T) {
	added := newAuthority(t)
	grace := credential{certificate: added.client(t, pkix.Name{CommonName: "grace"}, nil)}
	expectUser(t, grace, "")
	before, err := os.ReadFile(file("clients.crt"))
	if err != nil {
		t.Fatal(err)
	}
	await := func(user string) {
		t.Helper()
		for _, s := range servers() {
			eventually(t, func(ctx context.Context) error {
				a, err := s.identify(ctx, grace)
				if err == nil && a.User.Username != user {
					err = fmt.Errorf("%s: %+v, want the user %q", s.cluster.Config.Topology, a, user)
				}
				return err
			})
		}
		expectUser(t, grace, user)
	}
	t.Cleanup(func() { overwrite(t, "clients.crt", before) })
	overwrite(t, "clients.crt", bytes.Join([][]byte{before, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: added.certificate.Raw})}, nil))
	await("grace")
	overwrite(t, "clients.crt", before)
	await("")
	// A file without certificates changes nothing.
	overwrite(t, "clients.crt", []byte("no certificate\n"))
	expectUser(t, credential{certificate: load(t, site.pki.Admin)}, "kubernetes-admin")
}
