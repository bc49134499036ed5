package nexttier

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/handover"
	"triune.dev/shared/transport/tierclient"
)

// sentBy returns the headers that a proxy with ForwardCredentials sends for a request of u.
func sentBy(t *testing.T, u user.Info, req *http.Request) (http.Header, error) {
	t.Helper()
	c := testConfig("https://127.0.0.1:1")
	c.ForwardCredentials = true
	p := startProxy(t, c)
	out, err := p.outgoing(req, u, kindOf(req))
	if err != nil {
		return nil, err
	}
	return out.Header, nil
}

func TestForwardCredentials(t *testing.T) {
	pair, err := testPKI.Admin.Load()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, upgrade := range map[string]string{"short": "", "upgrade": "websocket"} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
			req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
			token := http.Header{"Authorization": {"Bearer secret"}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io, " + bearerProtocol + "c2VjcmV0"}}
			forged := http.Header{
				"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, handover.CertificatesHeader: {"forged"},
				"X-Remote-Client-Asserted": {"X-Remote-User=admin"},
			}
			for _, header := range []http.Header{token, forged} {
				for name, values := range header {
					req.Header[name] = values
				}
			}
			if upgrade != "" {
				req.Header["Connection"], req.Header["Upgrade"] = []string{"Upgrade, Authorization"}, []string{upgrade}
			}
			ctx := handover.NewContext(apirequest.WithUser(req.Context(), alice), handover.FromRequest(req, nil))
			// Authentication removes the credential.
			delete(req.Header, "Authorization")
			req.Header["Sec-Websocket-Protocol"] = []string{"v5.channel.k8s.io"}
			sent, err := sentBy(t, alice, req.WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			certificates, asserted, ok, err := handover.Extract(sent)
			if err != nil || !ok || asserted != nil {
				t.Fatalf("handed over: %v, asserted %v, %v", ok, asserted, err)
			}
			if chain, err := handover.ParseCertificates(certificates); err != nil || len(chain) != 1 || !chain[0].Equal(leaf) {
				t.Errorf("%d certificates, %v", len(chain), err)
			}
			for name, want := range token {
				if diff := cmp.Diff(want, sent[name]); diff != "" {
					t.Errorf("%s (-want +got)\n%s", name, diff)
				}
			}
			for name := range sent {
				if strings.HasPrefix(name, "X-Remote-") && name != "X-Remote-Challenge" && name != tierclient.ClientPortHeader {
					t.Errorf("%s is sent: %q", name, sent[name])
				}
			}
		})
	}
}

// Requests of the tier itself have no credential. Any other request without one is a bug of the
// handler chain and is refused.
func TestOnlyTierRequestsMayLackACredential(t *testing.T) {
	var own *http.Request
	tierclient.As(tierclient.User("aggregator"), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { own = req })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/namespaces", nil))
	sent, err := sentBy(t, tierclient.User("aggregator"), own)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok, _ := handover.Extract(sent); ok || sent["X-Remote-User"] != nil {
		t.Errorf("an own request carries %q", sent)
	}
	req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	if sent, err := sentBy(t, alice, req.WithContext(apirequest.WithUser(req.Context(), alice))); err == nil {
		t.Errorf("a client's request is sent as this tier's: %q", sent)
	}
}

func TestLargeCredentialsAreRefused(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	credential := &handover.Credential{Authorization: []string{strings.Repeat("x", maxHeaders)}}
	ctx := handover.NewContext(apirequest.WithUser(req.Context(), alice), credential)
	if _, err := sentBy(t, alice, req.WithContext(ctx)); err != errHeaderTooLarge {
		t.Errorf("got %v", err)
	}
}
