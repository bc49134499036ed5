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
	"time"

	"github.com/google/go-cmp/cmp"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	testingclock "k8s.io/utils/clock/testing"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/transport/distrust"
)

// presented is a request as it comes over a connection on which pair was
// presented.
func presented(t testing.TB, pair pki.Pair, header http.Header) *http.Request {
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

// again is another request over the connection of req.
func again(req *http.Request) *http.Request {
	clone := req.Clone(req.Context())
	clone.TLS = req.TLS
	return clone
}

// checked is the authenticator of the options, with and without memory.
type checked struct {
	pki                 *pki.PKI
	remembering, direct authenticator.Request
	asked               atomic.Int32 // requests that reached the authenticators
	clientFile          string
	reload              func(context.Context) error
}

func newChecked(t testing.TB) *checked {
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
	c := &checked{pki: made, clientFile: filepath.Join(dir, "clients.pem")}
	if err := os.WriteFile(c.clientFile, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	o.ClientCert.ClientCA = c.clientFile
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
	memory := info.Authenticator.(*tierConnections).next.(anonymity).next.(*remembering)
	c.direct = memory.next
	memory.next = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		c.asked.Add(1)
		return c.direct.AuthenticateRequest(req)
	})
	c.remembering = memory
	c.reload = serving.ClientCA.(dynamiccertificates.ControllerRunner).RunOnce
	return c
}

// TestRememberedAnswersAreTheSame asks about each certificate three times, on one
// connection.
func TestRememberedAnswersAreTheSame(t *testing.T) {
	c := newChecked(t)
	asserted := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Uid": {"carol-uid"},
		"X-Remote-Group": {"g1", "g2"}, "X-Remote-Extra-Scopes%2fx": {"read"},
	}
	tests := map[string]struct {
		client pki.Pair
		header http.Header
		// asked is how many of the requests reach the authenticators.
		asked int32
		bare  bool
	}{
		"front proxy":                      {c.pki.FrontProxyClient, asserted, 1, false},
		"front proxy without a user":       {c.pki.FrontProxyClient, nil, 0, true},
		"client":                           {c.pki.Clients["alice"], nil, 1, false},
		"client with forged headers":       {c.pki.Clients["alice"], asserted, 1, false},
		"front-proxy CA but a wrong name":  {c.pki.Clients["wrong-proxy"], asserted, 1, false},
		"a CA that is none of ours":        {c.pki.Clients["stranger"], nil, 1, false},
		"client with a token that is none": {c.pki.Clients["alice"], http.Header{"Authorization": {"Bearer nonsense"}}, 1, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c.asked.Store(0)
			req := presented(t, test.client, test.header)
			for i := range 3 {
				direct := again(req)
				want, wantOK, wantErr := c.direct.AuthenticateRequest(direct)
				if test.bare {
					want, wantOK, wantErr = nil, false, ErrBareFrontProxy
				}
				ours := again(req)
				got, ok, err := c.remembering.AuthenticateRequest(ours)
				if diff := cmp.Diff(want, got); diff != "" || ok != wantOK || (err != nil) != (wantErr != nil) {
					t.Errorf("request %d: %t, %v; want %t, %v (-want +got):\n%s", i, ok, err, wantOK, wantErr, diff)
				}
				if diff := cmp.Diff(direct.Header, ours.Header); diff != "" && !test.bare {
					t.Errorf("request %d: headers that handlers see (-want +got):\n%s", i, diff)
				}
			}
			if got := c.asked.Load(); got != test.asked {
				t.Errorf("the authenticators were asked %d times, want %d", got, test.asked)
			}
		})
	}
}

// TestNothingIsRememberedOverAReload: a CA that is taken out of the file is out
// of use, for connections that are open, too.
func TestNothingIsRememberedOverAReload(t *testing.T) {
	c := newChecked(t)
	req := presented(t, c.pki.Clients["alice"], nil)
	for range 2 {
		if _, ok, err := c.remembering.AuthenticateRequest(again(req)); !ok || err != nil {
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
	if err := os.WriteFile(c.clientFile, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := c.remembering.AuthenticateRequest(again(req)); ok || err == nil {
		t.Errorf("after the reload: %v, %t, %v; want an error", got, ok, err)
	}
}

// TestVerdictsEnd after their time and with the certificate, whichever is first.
func TestVerdictsEnd(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.LoadPool(made.FrontProxyCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	chain := presented(t, made.FrontProxyClient, nil).TLS.PeerCertificates
	now := testingclock.NewFakePassiveClock(time.Now())
	options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	v := newVerdicts(func() (x509.VerifyOptions, bool) { return options, true }, now)
	expect := func(when string, wantTrusted, wantKnown bool) {
		t.Helper()
		if trusted, known := v.trusts(chain); trusted != wantTrusted || known != wantKnown {
			t.Errorf("%s: trusted %t, known %t; want %t, %t", when, trusted, known, wantTrusted, wantKnown)
		}
	}
	expect("at first", true, false)
	expect("then", true, true)
	now.SetTime(now.Now().Add(verdictTime))
	expect("when its time is over", true, false)
	now.SetTime(now.Now().Add(-time.Second))
	expect("when the clock was put back", true, false)
	now.SetTime(chain[0].NotAfter.Add(-time.Second))
	expect("a second before the certificate expires", true, false)
	expect("in that second", true, true)
	now.SetTime(chain[0].NotAfter.Add(time.Second))
	expect("when it has expired", false, false)
	expect("after that", false, true)
	now.SetTime(now.Now().Add(refusedTime))
	expect("when that was long ago", false, false)
}

// TestVerdictsAreBounded, whatever certificates come.
func TestVerdictsAreBounded(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.LoadPool(made.FrontProxyCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	leaf := presented(t, made.FrontProxyClient, nil).TLS.PeerCertificates[0]
	v := newVerdicts(func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, testingclock.NewFakePassiveClock(time.Now()))
	strangers, err := pki.LoadPool(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	ours := roots
	roots = strangers
	for range 10 {
		if trusted, known := v.trusts([]*x509.Certificate{leaf}); trusted || known {
			t.Fatalf("of another CA: trusted %t, known %t", trusted, known)
		}
	}
	if got := len(v.known); got != 0 {
		t.Errorf("%d certificates of another CA are remembered", got)
	}
	roots = ours
	for range verdictLimit + 10 {
		other := *leaf // as another connection would have parsed it
		if trusted, known := v.trusts([]*x509.Certificate{&other}); !trusted || known {
			t.Fatalf("trusted %t, known %t", trusted, known)
		}
	}
	if got := len(v.known); got > verdictLimit {
		t.Errorf("%d certificates are remembered, want at most %d", got, verdictLimit)
	}
}

// BenchmarkCertificates is what a request costs that comes over a connection with
// a certificate: as k8s.io/apiserver checks it, and with memory.
//
//	go test -run '^$' -bench Certificates ./shared/server/authn
func BenchmarkCertificates(b *testing.B) {
	c := newChecked(b)
	c.remembering.(*remembering).next = c.direct
	for _, client := range []struct {
		name   string
		pair   pki.Pair
		header http.Header
	}{
		{"front proxy", c.pki.FrontProxyClient, http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"g1", "g2"}}},
		{"client", c.pki.Clients["alice"], nil},
	} {
		req := presented(b, client.pair, nil)
		for _, way := range []struct {
			name string
			who  authenticator.Request
		}{{"verified", c.direct}, {"remembered", c.remembering}} {
			b.Run(client.name+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					for name, values := range client.header {
						req.Header[name] = values // which the authenticator takes away
					}
					if _, ok, err := way.who.AuthenticateRequest(req); !ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
		}
	}
}

// TestBelievedProxiesLoseTheirChallenge, even if the user whom they assert is refused.
func TestBelievedProxiesLoseTheirChallenge(t *testing.T) {
	c := newChecked(t)
	refusing := anonymity{c.remembering, &apiserverapi.AnonymousAuthConfig{}}
	asserted := http.Header{"X-Remote-User": {user.Anonymous}, distrust.Challenge: {"secret"}}
	for name, test := range map[string]struct {
		client   pki.Pair
		header   http.Header
		believed bool
	}{
		"front proxy":                {c.pki.FrontProxyClient, asserted, true},
		"front proxy without a user": {c.pki.FrontProxyClient, http.Header{distrust.Challenge: {"secret"}}, false},
		"another CA's":               {c.pki.Admin, asserted, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // without and with memory
				req := presented(t, test.client, test.header)
				_, ok, _ := refusing.AuthenticateRequest(req)
				if believed := req.Header[distrust.Challenge] == nil; believed != test.believed || ok && test.believed {
					t.Errorf("believed: %v, let in: %v", believed, ok)
				}
			}
		})
	}
}
