// Package hooks has the common parts of the tests' webhooks: an HTTPS server that
// Kubernetes reaches by address or as a Service, and responses that are no valid reviews.
package hooks

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"

	"k8s.io/client-go/util/cert"
)

// Certificate is the serving certificate of webhooks, with the CA bundle that verifies it.
type Certificate struct {
	pair tls.Certificate
	// CA is in PEM.
	CA []byte
}

// NewCertificate makes a certificate for the loopback address, localhost and names.
func NewCertificate(names ...string) (*Certificate, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, names)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of webhooks: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of webhooks: %w", err)
	}
	return &Certificate{pair: pair, CA: certificate}, nil
}

// Serve starts a server on a port of the loopback address. The caller closes it.
func (c *Certificate) Serve(handler http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // handshakes that tests let fail
	server.TLS = &tls.Config{Certificates: []tls.Certificate{c.pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	return server
}

// NoReviews are invalid responses of a webhook, by name.
var NoReviews = map[string]func(http.ResponseWriter){
	"error":     func(w http.ResponseWriter) { http.Error(w, "the webhook is broken", http.StatusInternalServerError) },
	"forbidden": func(w http.ResponseWriter) { http.Error(w, "who are you", http.StatusForbidden) },
	"unknown":   func(w http.ResponseWriter) { http.Error(w, "who are you", http.StatusUnauthorized) },
	"page":      func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>Welcome!</html>") },
	"empty":     func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
	"another": func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"kind":"ConfigMap","apiVersion":"v1","status":{"allowed":true,"authenticated":true,"user":{"username":"x"}}}`)
	},
	"status": func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success","code":200}`)
	},
	"broken": func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true`)
	},
	"cut": func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "{")
	},
	"redirect": func(w http.ResponseWriter) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
	},
}

// Options are those of a TLS server with the certificate.
func (c *Certificate) Options() []func(*tls.Config) {
	return []func(*tls.Config){func(config *tls.Config) {
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.pair, nil }
	}}
}
