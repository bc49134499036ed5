package nexttier

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"triune.dev/shared/process/pki"
)

// credentials holds the files for mutual TLS and their last valid contents. It is safe for
// concurrent use.
type credentials struct {
	caFile string
	client pki.Pair

	mu       sync.Mutex
	versions [3]fileVersion
	current  tlsFiles
}

type tlsFiles struct {
	roots *x509.CertPool
	cert  tls.Certificate
}

// fileVersion distinguishes versions of a file.
type fileVersion struct {
	modified time.Time
	size     int64
}

func newCredentials(c Config) (*credentials, error) {
	creds := &credentials{caFile: c.CAFile, client: pki.Pair{CertFile: c.CertFile, KeyFile: c.KeyFile}}
	if _, err := creds.refresh(); err != nil {
		return nil, err
	}
	return creds, nil
}

// refresh reloads the files if they have changed, and reports whether it did. While they are not
// valid, for example between the replacement of the certificate and of its key, the last valid
// contents stay in use.
func (c *credentials) refresh() (changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var stamps [3]fileVersion
	for i, name := range []string{c.caFile, c.client.CertFile, c.client.KeyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return false, fmt.Errorf("read front-proxy credentials: %w", err)
		}
		stamps[i] = fileVersion{info.ModTime(), info.Size()}
	}
	if stamps == c.versions {
		return false, nil
	}
	roots, err := pki.LoadPool(c.caFile)
	if err != nil {
		return false, fmt.Errorf("read front-proxy credentials: %w", err)
	}
	cert, err := c.client.Load()
	if err != nil {
		return false, fmt.Errorf("read front-proxy credentials: %w", err)
	}
	c.versions, c.current = stamps, tlsFiles{roots, cert}
	return true, nil
}

// dial makes a TLS connection with the current credentials. It does not resume sessions: a
// resumed session would use the certificate of the original one.
func (c *credentials) dial(ctx context.Context, address, serverName, protocol string) (*tls.Conn, error) {
	c.mu.Lock()
	material := c.current
	c.mu.Unlock()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		RootCAs:      material.roots,
		Certificates: []tls.Certificate{material.cert},
		ServerName:   serverName,
		NextProtos:   []string{protocol},
		MinVersion:   tls.VersionTLS12,
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", address, err)
	}
	return conn, nil
}
