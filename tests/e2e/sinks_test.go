package e2e

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditWebhook counts the last events of requests by their audit id.
type auditWebhook struct {
	*httptest.Server

	mu    sync.Mutex
	ended map[string]int
}

func newAuditWebhook() *auditWebhook {
	w := &auditWebhook{ended: map[string]int{}}
	w.Server = httptest.NewServer(w)
	return w
}

// ServeHTTP implements [http.Handler].
func (w *auditWebhook) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	var list auditv1.EventList
	if err := json.NewDecoder(req.Body).Decode(&list); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, event := range list.Items {
		if event.Stage == auditv1.StageResponseComplete {
			w.ended[string(event.AuditID)]++
		}
	}
}

func (w *auditWebhook) count(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended[id]
}

// beyondProxy is an address of a network that only a connectProxy reaches (RFC 5737). It
// forwards each of its ports to the same port of the loopback address.
const beyondProxy = "198.51.100.7"

// connectProxy is an egress proxy that speaks HTTP CONNECT.
type connectProxy struct{ *httptest.Server }

// newConnectProxy starts a proxy and writes the files that its clients need: the CA, and a
// client certificate, which it does not check.
func newConnectProxy(caFile, certFile, keyFile string) (*connectProxy, error) {
	p := &connectProxy{}
	p.Server = httptest.NewTLSServer(p)
	if err := writePEM(caFile, "CERTIFICATE", p.Certificate().Raw); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "egress"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return p, errors.Join(writePEM(certFile, "CERTIFICATE", certificate), writePEM(keyFile, "PRIVATE KEY", private))
}

func writePEM(file, kind string, content []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600)
}

// ServeHTTP implements [http.Handler].
func (p *connectProxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodConnect {
		http.Error(w, "CONNECT alone", http.StatusMethodNotAllowed)
		return
	}
	host, port, err := net.SplitHostPort(req.Host)
	if err != nil || host != beyondProxy {
		http.Error(w, "there is no way to "+req.Host, http.StatusBadGateway)
		return
	}
	out, err := (&net.Dialer{}).DialContext(req.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		done <- struct{}{}
	}
	go pass(out, buffered)
	go pass(in, out)
	<-done
}

// issuer is an OpenID Connect provider with one key.
type issuer struct {
	*httptest.Server
	caFile string
	key    *rsa.PrivateKey
}

// newIssuer starts an issuer and writes its certificate to caFile.
func newIssuer(caFile string) (*issuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	i := &issuer{caFile: caFile, key: key}
	i.Server = httptest.NewTLSServer(i)
	return i, writePEM(caFile, "CERTIFICATE", i.Certificate().Raw)
}

// ServeHTTP implements [http.Handler]: the two documents of OpenID Connect Discovery 1.0
// that are needed to verify tokens.
func (i *issuer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/auth", "token_endpoint": i.URL + "/token",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	case "/keys":
		public := i.key.PublicKey
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{
			"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one",
			"n": encoded(public.N.Bytes()), "e": encoded(big.NewInt(int64(public.E)).Bytes()),
		}}})
	default:
		http.NotFound(w, req)
	}
}

func encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token returns a token of the user that is valid for a minute.
func (i *issuer) token(t *testing.T, user string, groups ...string) string {
	t.Helper()
	part := func(v any) string {
		content, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return encoded(content)
	}
	now := time.Now()
	signed := part(map[string]string{"alg": "RS256", "kid": "one"}) + "." + part(map[string]any{
		"iss": i.URL, "aud": "triune", "sub": user, "groups": groups,
		"iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + encoded(signature)
}
