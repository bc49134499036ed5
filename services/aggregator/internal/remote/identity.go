package remote

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync"
)

// CertKeyContent returns the current PEM of the proxy's client certificate and key, as
// dynamiccertificates.CertKeyContentProvider does. It must be safe for concurrent use.
type CertKeyContent interface {
	CurrentCertKeyContent() (cert, key []byte)
}

// Identity is the client certificate by which extension servers recognize the front proxy and trust
// its X-Remote-* headers. The zero value and a nil *Identity have no certificate.
type Identity struct {
	content CertKeyContent

	mu     sync.Mutex
	cert   []byte
	key    []byte
	parsed *tls.Certificate
}

// NewIdentity returns the identity with the PEM from content, which is read at every TLS handshake.
// If content is nil, the identity has no certificate: extension servers treat requests as
// anonymous.
func NewIdentity(content CertKeyContent) *Identity {
	return &Identity{content: content}
}

// PEM returns the certificate and the key, or nil if there is none.
func (i *Identity) PEM() (cert, key []byte) {
	if i == nil || i.content == nil {
		return nil, nil
	}
	return i.content.CurrentCertKeyContent()
}

// clientCertificate implements tls.Config.GetClientCertificate. It parses the PEM only if it has
// changed.
func (i *Identity) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, key := i.PEM()
	if len(cert) == 0 || len(key) == 0 {
		// crypto/tls does not allow nil; an empty certificate stands for none.
		return &tls.Certificate{}, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.parsed != nil && bytes.Equal(i.cert, cert) && bytes.Equal(i.key, key) {
		return i.parsed, nil
	}
	parsed, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("parse the front proxy's client certificate: %w", err)
	}
	i.cert, i.key, i.parsed = cert, key, &parsed
	return i.parsed, nil
}
