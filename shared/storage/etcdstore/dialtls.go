package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// clientTLS returns the TLS configuration of --etcd-certfile, --etcd-keyfile and
// --etcd-cafile, nil without these flags. It reads the client certificate again for every
// connection, so that a renewed one needs no restart.
func clientTLS(c storagebackend.TransportConfig) (*tls.Config, error) {
	if c.CertFile == "" && c.KeyFile == "" && c.TrustedCAFile == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, fmt.Errorf("certificate file %q and key file %q: both or neither are needed", c.CertFile, c.KeyFile)
	}
	if c.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("client certificate %s with key %s: %w", c.CertFile, c.KeyFile, err)
			}
			return &pair, nil
		}
		// Report an invalid file now, not at the first handshake.
		if _, err := load(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	if c.TrustedCAFile != "" {
		pem, err := os.ReadFile(c.TrustedCAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s: %w", c.TrustedCAFile, errors.New("holds no certificate"))
		}
	}
	return config, nil
}
