package filters

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/server/authn"
	"triune.dev/shared/transport/distrust"
)

// proxiedTier returns a tier behind others, and the connections of a front proxy, of another
// tier, and of a client.
func proxiedTier(t *testing.T) (x *tier, proxy, front, client *tls.ConnectionState) {
	t.Helper()
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(made.FrontProxyCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := dynamiccertificates.NewStaticCAContent("front proxies", bundle)
	if err != nil {
		t.Fatal(err)
	}
	x = newTier(t, func(c *Config) {
		c.Generic.Authentication.RequestHeaderConfig = &authenticatorfactory.RequestHeaderConfig{
			CAContentProvider:   ca,
			AllowedClientNames:  headerrequest.StaticStringSlice{pki.FrontProxyClientName},
			UsernameHeaders:     headerrequest.StaticStringSlice{"X-Remote-User"},
			GroupHeaders:        headerrequest.StaticStringSlice{"X-Remote-Group"},
			UIDHeaders:          headerrequest.StaticStringSlice{"X-Remote-Uid"},
			ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Remote-Extra-"},
		}
		c.Generic.Authentication.Authenticator = authn.CacheCertificates(c.Generic.Authentication.Authenticator, authn.CertificateConfig{Proxies: c.Generic.Authentication.RequestHeaderConfig})
		c.Generic.GoawayChance = 1
		c.Generic.SecureServing = &server.SecureServingInfo{}
	})
	connection := func(pair pki.Pair) *tls.ConnectionState {
		certificate, err := pair.Load()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(certificate.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	}
	return x, connection(made.FrontProxyClient), connection(made.Tier["aggregator"]), connection(made.Admin)
}

// TestConnectionsOfFrontProxiesStayOpen: GOAWAY is meant for one client (CVE-2023-44487, and
// --goaway-chance), but a connection of a front proxy carries the requests of many.
func TestConnectionsOfFrontProxiesStayOpen(t *testing.T) {
	x, proxy, front, client := proxiedTier(t)
	for name, test := range map[string]struct {
		connection *tls.ConnectionState
		closed     bool
	}{
		"front proxy":    {proxy, false},
		"tier":           {front, false},
		"client":         {client, true},
		"no certificate": {nil, true},
	} {
		for _, target := range []string{"/api/v1/pods", "/api/v1/pods?watch=1", "/apis/other/v1/things"} {
			for _, who := range []string{user.Anonymous, "alice", "nobody"} {
				t.Run(name+" "+target+" "+who, func(t *testing.T) {
					req := newRequest(http.MethodGet, target, "Authorization: "+who, "X-Remote-User: "+who)
					req.Proto, req.ProtoMajor, req.ProtoMinor, req.TLS = "HTTP/2.0", 2, 0, test.connection
					answer := do(x.Edge, req)
					if closed := answer.Header().Get("Connection") != ""; closed != test.closed {
						t.Errorf("code %d, the connection is closed: %v", answer.Code, closed)
					}
				})
			}
		}
	}
}

// TestChallengeIsNotForHandlers: a handler that knows the challenge could make a front proxy
// send a request twice.
func TestChallengeIsNotForHandlers(t *testing.T) {
	x, proxy, _, _ := proxiedTier(t)
	look := func(_ http.ResponseWriter, req *http.Request) {
		if req.Header[distrust.ChallengeHeader] != nil {
			t.Error("a handler sees the challenge")
		}
	}
	x.serve, x.next = look, look
	for target, authorization := range map[string]string{"/api/v1/pods": "alice", "/apis/other/v1/things": "alice", "/api/v1/nodes": "nobody"} {
		req := newRequest(http.MethodPost, target, "Authorization: "+authorization, "X-Remote-User: alice", distrust.ChallengeHeader+": secret")
		req.TLS = proxy
		if answer := do(x.Edge, req); distrust.Echoed(answer.Header(), "secret") {
			t.Errorf("%s as %s: the answer to a trusted proxy says that it is not trusted", target, authorization)
		}
		req = newRequest(http.MethodPost, target, "Authorization: nobody", distrust.ChallengeHeader+": secret")
		req.TLS = proxy
		if answer := do(x.Edge, req); !distrust.Echoed(answer.Header(), "secret") {
			t.Errorf("%s: the answer to a proxy that names no user does not say that it is not trusted", target)
		}
	}
}

// TestHopIsUndone checks that a request that a tier has passed on is that of its client, and
// that nobody else can name another client.
func TestHopIsUndone(t *testing.T) {
	x, proxy, front, client := proxiedTier(t)
	for name, test := range map[string]struct {
		connection      *tls.ConnectionState
		forwarded       string
		address, passed string
		auditID         bool
	}{
		"a tier":               {front, "192.0.2.7", "192.0.2.7:55", "", false},
		"a tier, IPv6":         {front, "2001:db8::7", "[2001:db8::7]:55", "", false},
		"a proxy, then a tier": {front, "198.51.100.1, 198.51.100.2, 192.0.2.7", "192.0.2.7:55", "198.51.100.1, 198.51.100.2", false},
		"a tier itself":        {front, "", "192.0.2.1:1234", "", true},
		"a front proxy":        {proxy, "192.0.2.7", "192.0.2.1:1234", "192.0.2.7", true},
		"a client":             {client, "192.0.2.7", "192.0.2.1:1234", "192.0.2.7", true},
	} {
		t.Run(name, func(t *testing.T) {
			var seen *http.Request
			x.serve = func(_ http.ResponseWriter, req *http.Request) { seen = req }
			req := newRequest(http.MethodGet, "/api/v1/pods", "Authorization: alice", "X-Remote-User: alice", "X-Remote-Port: 55", "Audit-Id: one")
			if test.forwarded != "" {
				req.Header.Set("X-Forwarded-For", test.forwarded)
			}
			req.TLS = test.connection
			do(x.Edge, req)
			if seen == nil {
				t.Fatal("the request is not served")
			}
			if got := seen.Header.Get("X-Forwarded-For"); seen.RemoteAddr != test.address || got != test.passed || (seen.Header.Get("Audit-Id") != "") != test.auditID {
				t.Errorf("%s, forwarded for %q, audit ID %q", seen.RemoteAddr, got, seen.Header.Get("Audit-Id"))
			}
		})
	}
}
