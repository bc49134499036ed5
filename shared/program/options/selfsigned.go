package options

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"time"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity of a generated certificate. kube-apiserver's lives as long: a cluster
// that runs on one is a test.
const validity = 365 * 24 * time.Hour

// SelfSigned makes serving have a certificate: unless one is given by flag, or is
// in --cert-dir already, it makes one there, under kube-apiserver's file names.
// publicAddress is a name or an IP address.
//
// k8s.io/apiserver's own MaybeDefaultWithSelfSignedCerts makes two RSA keys for
// it, which may take half a second; these are elliptic. Whoever has to call that
// function calls this one first, so that it finds the files.
func SelfSigned(serving *genericoptions.SecureServingOptions, publicAddress string, dnsNames []string, ips []net.IP) error {
	files := &serving.ServerCert.CertKey
	if files.CertFile != "" || files.KeyFile != "" || serving.BindPort == 0 && serving.Listener == nil {
		return nil
	}
	base := filepath.Join(serving.ServerCert.CertDirectory, serving.ServerCert.PairName)
	certFile, keyFile := base+".crt", base+".key"
	there, err := cert.CanReadCertAndKey(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("--cert-dir=%s: %w", serving.ServerCert.CertDirectory, err)
	}
	if !there {
		if serving.BindAddress.IsUnspecified() {
			dnsNames = append(dnsNames, "localhost")
			ips = append(ips, net.IPv4(127, 0, 0, 1))
		} else {
			ips = append(ips, serving.BindAddress)
		}
		if ip := net.ParseIP(publicAddress); ip != nil {
			ips = append(ips, ip)
		} else {
			dnsNames = append(dnsNames, publicAddress)
		}
		certPEM, keyPEM, err := selfSigned(publicAddress, dnsNames, ips)
		if err != nil {
			return fmt.Errorf("make a serving certificate: %w", err)
		}
		if err := cert.WriteCert(certFile, certPEM); err != nil {
			return fmt.Errorf("--cert-dir=%s: %w", serving.ServerCert.CertDirectory, err)
		}
		if err := keyutil.WriteKey(keyFile, keyPEM); err != nil {
			return fmt.Errorf("--cert-dir=%s: %w", serving.ServerCert.CertDirectory, err)
		}
	}
	files.CertFile, files.KeyFile = certFile, keyFile
	return nil
}

// selfSigned returns a certificate with the CA that signed it behind it, so that
// the file is also a bundle to verify it with. The CA's key is forgotten.
func selfSigned(host string, dnsNames []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	now := time.Now()
	caName := fmt.Sprintf("%s-ca@%d", host, now.Unix())
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	ca := &x509.Certificate{
		Subject:               pkix.Name{CommonName: caName},
		DNSNames:              []string{caName},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	caDER, err := issue(ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	leafDER, err := issue(&x509.Certificate{
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", host, now.Unix())},
		DNSNames:              dnsNames,
		IPAddresses:           ips,
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, ca, key.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	var bundle strings.Builder
	for _, der := range [][]byte{leafDER, caDER} {
		bundle.Write(pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}))
	}
	return []byte(bundle.String()), pem.EncodeToMemory(&pem.Block{Type: keyutil.ECPrivateKeyBlockType, Bytes: keyDER}), nil
}

func issue(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) ([]byte, error) {
	// RFC 5280 section 4.1.2.2: positive and at most 20 octets.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	return x509.CreateCertificate(rand.Reader, template, parent, public, signer)
}
