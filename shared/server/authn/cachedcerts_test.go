package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/transport/distrust"
)

// newTLSRequest returns a request over a connection whose client presented pair.
func newTLSRequest(t testing.TB, pair pki.Pair, header http.Header) *http.Request {
	t.Helper()
	certificate, err := pair.Load()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(certificate.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	for name, values := range header {
		req.Header[name] = values
	}
	return req
}

// again returns another request over the connection of req.
func again(req *http.Request) *http.Request {
	clone := req.Clone(req.Context())
	clone.TLS = req.TLS
	return clone
}

// certFixture is the authenticator of the options, with and without its cache.
type certFixture struct {
	pki              *pki.PKI
	cached, uncached authenticator.Request
	calls            atomic.Int32 // of uncached by cached
	clientCAFile     string
	reload           func(context.Context) error
}

func newCertFixture(t testing.TB) *certFixture {
	t.Helper()
	dir := t.TempDir()
	made, err := pki.Ensure(dir, pki.Options{Clients: []pki.Client{
		{Name: "alice", CommonName: "alice", Organizations: []string{"developers"}},
		{Name: "wrong-proxy", CommonName: "mallory", Authority: pki.FrontProxyCA},
		{Name: "stranger", CommonName: "stranger", Authority: pki.EtcdCA},
	}})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	c := &certFixture{pki: made, clientCAFile: filepath.Join(dir, "clients.pem")}
	if err := os.WriteFile(c.clientCAFile, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	o.ClientCert.ClientCA = c.clientCAFile
	o.RequestHeader.ClientCAFile = made.FrontProxyCA.CertFile
	o.RequestHeader.AllowedNames = []string{pki.FrontProxyClientName}
	o.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
	o.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	o.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	o.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	var info genericapiserver.AuthenticationInfo
	var serving genericapiserver.SecureServingInfo
	if err := o.ApplyTo(&info, &serving, nil); err != nil {
		t.Fatal(err)
	}
	caching := info.Authenticator.(*tierAuthenticator).next.(anonymousFilter).next.(*cachingAuthenticator)
	c.uncached = caching.next
	caching.next = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		c.calls.Add(1)
		return c.uncached.AuthenticateRequest(req)
	})
	c.cached = caching
	c.reload = serving.ClientCA.(dynamiccertificates.ControllerRunner).RunOnce
	return c
}

// TestCachedAnswersAreTheSame authenticates three requests with each certificate, over one
// connection.
func TestCachedAnswersAreTheSame(t *testing.T) {
	c := newCertFixture(t)
	asserted := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Uid": {"carol-uid"},
		"X-Remote-Group": {"g1", "g2"}, "X-Remote-Extra-Scopes%2fx": {"read"},
	}
	tests := map[string]struct {
		client pki.Pair
		header http.Header
		// calls is the number of requests that reach the authenticators.
		calls       int32
		withoutUser bool
	}{
		"front proxy":                     {c.pki.FrontProxyClient, asserted, 1, false},
		"front proxy without a user":      {c.pki.FrontProxyClient, nil, 0, true},
		"client":                          {c.pki.Clients["alice"], nil, 1, false},
		"client with forged headers":      {c.pki.Clients["alice"], asserted, 1, false},
		"front-proxy CA but a wrong name": {c.pki.Clients["wrong-proxy"], asserted, 1, false},
		"unknown CA":                      {c.pki.Clients["stranger"], nil, 1, false},
		"client with an invalid token":    {c.pki.Clients["alice"], http.Header{"Authorization": {"Bearer nonsense"}}, 1, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c.calls.Store(0)
			req := newTLSRequest(t, test.client, test.header)
			for i := range 3 {
				direct := again(req)
				want, wantOK, wantErr := c.uncached.AuthenticateRequest(direct)
				if test.withoutUser {
					want, wantOK, wantErr = nil, false, ErrFrontProxyWithoutUser
				}
				ours := again(req)
				got, ok, err := c.cached.AuthenticateRequest(ours)
				if diff := cmp.Diff(want, got); diff != "" || ok != wantOK || (err != nil) != (wantErr != nil) {
					t.Errorf("request %d: %t, %v; want %t, %v (-want +got):\n%s", i, ok, err, wantOK, wantErr, diff)
				}
				if diff := cmp.Diff(direct.Header, ours.Header); diff != "" && !test.withoutUser {
					t.Errorf("request %d: headers that handlers see (-want +got):\n%s", i, diff)
				}
			}
			if got := c.calls.Load(); got != test.calls {
				t.Errorf("the authenticators were called %d times, want %d", got, test.calls)
			}
		})
	}
}

// TestReloadInvalidatesCache: a CA that is removed from the file is no longer trusted, also
// on open connections.
func TestReloadInvalidatesCache(t *testing.T) {
	c := newCertFixture(t)
	req := newTLSRequest(t, c.pki.Clients["alice"], nil)
	for range 2 {
		if _, ok, err := c.cached.AuthenticateRequest(again(req)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	other, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(other.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.clientCAFile, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := c.cached.AuthenticateRequest(again(req)); ok || err == nil {
		t.Errorf("after the reload: %v, %t, %v; want an error", got, ok, err)
	}
}

// BenchmarkCertificates measures the authentication of a request by a certificate, with and
// without the cache.
//
//	go test -run '^$' -bench Certificates ./shared/server/authn
func BenchmarkCertificates(b *testing.B) {
	c := newCertFixture(b)
	c.cached.(*cachingAuthenticator).next = c.uncached
	for _, client := range []struct {
		name   string
		pair   pki.Pair
		header http.Header
	}{
		{"front proxy", c.pki.FrontProxyClient, http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"g1", "g2"}}},
		{"client", c.pki.Clients["alice"], nil},
	} {
		req := newTLSRequest(b, client.pair, nil)
		for _, way := range []struct {
			name string
			who  authenticator.Request
		}{{"verified", c.uncached}, {"cached", c.cached}} {
			b.Run(client.name+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					for name, values := range client.header {
						req.Header[name] = values // the authenticator removes them
					}
					if _, ok, err := way.who.AuthenticateRequest(req); !ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
		}
	}
}

// TestTrustedProxiesLoseTheirChallenge, even if the user that they assert is refused.
func TestTrustedProxiesLoseTheirChallenge(t *testing.T) {
	c := newCertFixture(t)
	refusing := anonymousFilter{c.cached, &apiserverapi.AnonymousAuthConfig{}}
	asserted := http.Header{"X-Remote-User": {user.Anonymous}, distrust.ChallengeHeader: {"secret"}}
	for name, test := range map[string]struct {
		client  pki.Pair
		header  http.Header
		trusted bool
	}{
		"front proxy":                {c.pki.FrontProxyClient, asserted, true},
		"front proxy without a user": {c.pki.FrontProxyClient, http.Header{distrust.ChallengeHeader: {"secret"}}, false},
		"another CA's":               {c.pki.Admin, asserted, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time from the cache
				req := newTLSRequest(t, test.client, test.header)
				_, ok, _ := refusing.AuthenticateRequest(req)
				if trusted := req.Header[distrust.ChallengeHeader] == nil; trusted != test.trusted || ok && test.trusted {
					t.Errorf("trusted: %v, authenticated: %v", trusted, ok)
				}
			}
		})
	}
}
