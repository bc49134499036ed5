package authn

import (
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/handover"
)

// tierFixture is an authenticator like core's, and the certificates of an installation.
type tierFixture struct {
	pki  *pki.PKI
	core authenticator.Request
	// tiers is core as its type.
	tiers *tierAuthenticator
}

func newTierFixture(t testing.TB, names []string, tiers ...string) *tierFixture {
	t.Helper()
	made, err := pki.Ensure(t.TempDir(), pki.Options{Clients: []pki.Client{
		{Name: "alice", CommonName: "alice", Organizations: []string{"developers"}},
		{Name: "proxy", CommonName: "our-proxy", Authority: pki.FrontProxyCA},
		{Name: "forged", CommonName: pki.TierPrefix + "aggregator"}, // of the cluster CA
		{Name: "stranger", CommonName: "alice", Authority: pki.EtcdCA},
	}})
	if err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	o.ClientCert.ClientCA = made.ClusterCA.CertFile
	o.RequestHeader = genericoptions.RequestHeaderAuthenticationOptions{
		ClientCAFile: made.FrontProxyCA.CertFile, AllowedNames: names, UsernameHeaders: []string{"X-Remote-User"},
		UIDHeaders: []string{"X-Remote-Uid"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}
	o.TokenFile = filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(o.TokenFile, []byte(staticToken+",bob,bob-uid\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxies, err := o.RequestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := o.ClientCert.GetClientCAContentProvider()
	if err != nil {
		t.Fatal(err)
	}
	inner, err := o.authenticator(proxies, clients, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The options' own authenticator accepts no tier.
	inner = inner.(*tierAuthenticator).next
	core := AuthenticateTiers(inner, proxies, tiers...)
	return &tierFixture{made, core, core.(*tierAuthenticator)}
}

// handOver returns the headers of a request that hands over a credential.
func handOver(c handover.Credential, more http.Header) http.Header {
	header := http.Header{}
	for name, values := range more {
		header[name] = values
	}
	c.SetHeaders(header)
	return header
}

func (f *tierFixture) chain(t testing.TB, name string) []*x509.Certificate {
	return newTLSRequest(t, f.pki.Clients[name], nil).TLS.PeerCertificates
}

// identify returns the name and groups of a request's user, or why it has none.
func (f *tierFixture) identify(req *http.Request) []string {
	response, ok, err := f.core.AuthenticateRequest(req)
	switch {
	case err != nil:
		return []string{"error"}
	case !ok:
		return []string{"nobody"}
	}
	return append([]string{response.User.GetName()}, response.User.GetGroups()...)
}

func TestTiersAuthenticateByTheirCertificates(t *testing.T) {
	f := newTierFixture(t, []string{"our-proxy"}, "aggregator", "extensions")
	masters := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
	alice := []string{"alice", "developers", "system:authenticated"}
	aggregator, extensions := f.pki.Tier["aggregator"], f.pki.Tier["extensions"]
	nobody := []string{"system:anonymous", "system:unauthenticated"}
	refused := []string{"error"}
	for name, test := range map[string]struct {
		pair   pki.Pair
		header http.Header
		want   []string
	}{
		"own":                         {aggregator, nil, []string{"system:triune:aggregator", "system:authenticated"}},
		"own of extensions":           {extensions, nil, []string{"system:triune:extensions", "system:authenticated"}},
		"asserts masters":             {aggregator, masters, []string{"system:triune:aggregator", "system:authenticated"}},
		"extensions asserts masters":  {extensions, masters, []string{"system:triune:extensions", "system:authenticated"}},
		"core is no client of core":   {f.pki.Tier["core"], masters, refused},
		"a client's common name":      {f.pki.Clients["forged"], nil, []string{"system:triune:aggregator", "system:authenticated"}},
		"a certificate":               {aggregator, handOver(handover.Credential{Certificates: f.chain(t, "alice")}, nil), alice},
		"a certificate, asserting":    {aggregator, handOver(handover.Credential{Certificates: f.chain(t, "alice")}, masters), alice},
		"extensions hands over":       {extensions, handOver(handover.Credential{Certificates: f.chain(t, "alice")}, nil), refused},
		"a client hands over":         {f.pki.Clients["alice"], handOver(handover.Credential{Certificates: f.chain(t, "proxy")}, nil), refused},
		"a stranger's certificate":    {aggregator, handOver(handover.Credential{Certificates: f.chain(t, "stranger")}, nil), refused},
		"a token":                     {aggregator, handOver(handover.Credential{Authorization: []string{"Bearer " + staticToken}}, nil), []string{"bob", "system:authenticated"}},
		"a wrong token":               {aggregator, handOver(handover.Credential{Authorization: []string{"Bearer wrong"}}, nil), refused},
		"nothing":                     {aggregator, handOver(handover.Credential{}, nil), nobody},
		"nothing, asserting":          {aggregator, handOver(handover.Credential{}, masters), nobody},
		"nothing, a client asserting": {aggregator, handOver(handover.Credential{Certificates: f.chain(t, "alice"), Asserted: masters}, nil), alice},
		"a proxy's user":              {aggregator, handOver(handover.Credential{Certificates: f.chain(t, "proxy"), Asserted: http.Header{"X-Remote-User": {"carol"}}}, masters), []string{"carol", "system:authenticated"}},
		"a proxy without a user":      {aggregator, handOver(handover.Credential{Certificates: f.chain(t, "proxy")}, masters), refused},
		"a tier's certificate":        {aggregator, handOver(handover.Credential{Certificates: newTLSRequest(t, extensions, nil).TLS.PeerCertificates, Asserted: masters}, nil), refused},
		"no certificate at all":       {aggregator, http.Header{handover.CertificatesHeader: {"bm9uZQ=="}}, refused},
		"twice":                       {aggregator, http.Header{handover.CertificatesHeader: {"", ""}}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			req := newTLSRequest(t, test.pair, test.header)
			for range 2 { // the second time from the cache
				if diff := cmp.Diff(test.want, f.identify(again(req))); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// TestTierCertificatesAreNotHandedOver: a tier connects itself, and its certificate is not
// secret. Without configured names every front proxy may assert users.
func TestTierCertificatesAreNotHandedOver(t *testing.T) {
	masters := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
	f := newTierFixture(t, nil, "aggregator", "extensions")
	for _, tier := range []string{"core", "extensions", "aggregator"} {
		chain := newTLSRequest(t, f.pki.Tier[tier], nil).TLS.PeerCertificates
		for range 2 {
			req := newTLSRequest(t, f.pki.Tier["aggregator"], handOver(handover.Credential{Certificates: chain, Asserted: masters}, nil))
			if diff := cmp.Diff([]string{"error"}, f.identify(req)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tier, diff)
			}
		}
	}
}

// TestTiersAssertUsersOnlyIfNamed: if no names of front proxies are configured, all may
// assert users, except tiers.
func TestTiersAssertUsersOnlyIfNamed(t *testing.T) {
	masters := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
	every := newTierFixture(t, nil)
	if got := every.identify(newTLSRequest(t, every.pki.Tier["extensions"], masters)); !cmp.Equal(got, []string{"error"}) {
		t.Errorf("a tier that is not named: %v", got)
	}
	if got := every.identify(newTLSRequest(t, every.pki.Clients["proxy"], masters)); got[0] != "admin" {
		t.Errorf("a front proxy: %v", got)
	}
	named := newTierFixture(t, []string{pki.TierPrefix + "core"})
	if got := named.identify(newTLSRequest(t, named.pki.Tier["core"], masters)); got[0] != "admin" {
		t.Errorf("a tier that is named: %v", got)
	}
	if got := named.identify(newTLSRequest(t, named.pki.Tier["aggregator"], masters)); !cmp.Equal(got, []string{"error"}) {
		t.Errorf("another tier: %v", got)
	}
}

// TestRefusedClientsAreNoDistrust: a trusted tier does not keep its challenge, even if its
// client is refused.
func TestRefusedClientsAreNoDistrust(t *testing.T) {
	f := newTierFixture(t, []string{"our-proxy"}, "aggregator")
	for name, test := range map[string]struct {
		tier string
		want bool // the challenge is left
	}{"trusted": {"aggregator", false}, "not trusted": {"extensions", true}} {
		header := handOver(handover.Credential{Authorization: []string{"Bearer wrong"}}, http.Header{distrust.ChallengeHeader: {"secret"}})
		req := newTLSRequest(t, f.pki.Tier[test.tier], header)
		if _, ok, err := f.core.AuthenticateRequest(req); ok || err == nil {
			t.Errorf("%s: authenticated", name)
		}
		if _, left := req.Header[distrust.ChallengeHeader]; left != test.want {
			t.Errorf("%s: challenge left: %v", name, left)
		}
	}
}

func TestHandedOverCertificatesAreBounded(t *testing.T) {
	f := newTierFixture(t, []string{"our-proxy"}, "aggregator")
	stranger := handOver(handover.Credential{Certificates: f.chain(t, "stranger")}, nil)
	f.identify(newTLSRequest(t, f.pki.Tier["aggregator"], stranger))
	if n := len(f.tiers.chains.chains); n != 0 {
		t.Errorf("%d unverified certificates are cached", n)
	}
	alice := f.chain(t, "alice")
	for i := range 3 * maxChains {
		f.tiers.chains.add(string(rune('a'+i)), alice)
	}
	f.tiers.chains.add(string(make([]byte, maxChainBytes+1)), alice)
	if n := len(f.tiers.chains.chains); n > maxChains {
		t.Errorf("%d certificates are cached", n)
	}
	if _, cached, _ := f.tiers.chains.parse(string(make([]byte, maxChainBytes+1))); cached {
		t.Error("a large certificate is cached")
	}
}
