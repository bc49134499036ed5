package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// ClockSkew is the time by which the clock of a peer may be behind. New certificates become
// valid that much earlier, so that peers do not refuse them.
const ClockSkew = 5 * time.Minute

// NewKey generates an ECDSA P-256 key and returns it with its PEM form.
func NewKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: keyutil.ECPrivateKeyBlockType, Bytes: der}), nil
}

// Sign issues template for the public key, with a new serial number, and returns the
// certificate with its PEM form. signer is the key of parent. For a self-signed authority,
// parent is template itself.
func Sign(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, []byte, error) {
	// RFC 5280 section 4.1.2.2: positive, unique, at most 20 octets.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("choose serial number: %w", err)
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign: %w", err)
	}
	issued, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the signed certificate: %w", err)
	}
	return issued, EncodeCertificate(issued), nil
}

// EncodeCertificate returns the PEM form of c.
func EncodeCertificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw})
}

// ParseKey returns the private key in PEM data. The caller adds the source of data to the
// error.
func ParseKey(data []byte) (crypto.Signer, error) {
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, errors.New("holds no usable private key")
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, errors.New("holds a key that cannot sign")
	}
	return key, nil
}

// SamePublicKey reports whether public is the public half of key.
func SamePublicKey(key crypto.Signer, public crypto.PublicKey) bool {
	own, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && own.Equal(public)
}
