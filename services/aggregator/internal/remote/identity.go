package remote

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync"
)

// CertKeyContent gives the PEM of the proxy's client certificate and key as they
// are now. dynamiccertificates.CertKeyContentProvider is one; it must be safe
// for concurrent use.
type CertKeyContent interface {
	CurrentCertKeyContent() (cert, key []byte)
}

// Identity is the client certificate that proves to an extension server that a
// request comes from the front proxy and that its X-Remote-* headers may be
// believed. The zero value and a nil *Identity have no certificate.
type Identity struct {
	content CertKeyContent

	mu     sync.Mutex
	cert   []byte
	key    []byte
	parsed *tls.Certificate
}

// NewIdentity returns the identity whose PEM is read from content at every TLS
// handshake. A nil content is an identity without a certificate: extension
// servers will then treat proxied requests as anonymous.
func NewIdentity(content CertKeyContent) *Identity {
	return &Identity{content: content}
}

// PEM returns the certificate and the key, both nil if there is none.
func (i *Identity) PEM() (cert, key []byte) {
	if i == nil || i.content == nil {
		return nil, nil
	}
	return i.content.CurrentCertKeyContent()
}

// clientCertificate is a tls.Config.GetClientCertificate. The PEM is parsed once
// for as long as it does not change.
func (i *Identity) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, key := i.PEM()
	if len(cert) == 0 || len(key) == 0 {
		// crypto/tls wants a certificate here; an empty one means "I have none".
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
