package options

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"path/filepath"
	"time"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"triune.dev/shared/process/pki"
)

// The validity of a generated certificate, from validBefore its making; both are those
// of kube-apiserver.
const (
	validity    = 365 * 24 * time.Hour
	validBefore = time.Hour
)

// ensureServingCert sets the certificate of serving, unless flags name one or the server
// does not listen. It uses the files of --cert-dir, under kube-apiserver's names, and makes
// them if they do not exist. publicAddress is a DNS name or an IP address.
//
// MaybeDefaultWithSelfSignedCerts of k8s.io/apiserver does the same with two RSA keys,
// which may take half a second; these are elliptic.
func ensureServingCert(serving *genericoptions.SecureServingOptions, publicAddress string, dnsNames []string) error {
	files := &serving.ServerCert.CertKey
	if files.CertFile != "" || files.KeyFile != "" || serving.BindPort == 0 && serving.Listener == nil {
		return nil
	}
	base := filepath.Join(serving.ServerCert.CertDirectory, serving.ServerCert.PairName)
	certFile, keyFile := base+".crt", base+".key"
	exists, err := cert.CanReadCertAndKey(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("--cert-dir=%s: %w", serving.ServerCert.CertDirectory, err)
	}
	if !exists {
		var ips []net.IP
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

// selfSigned returns a certificate followed by the CA that signed it, so that the file
// also verifies the certificate. The key of the CA is not kept.
func selfSigned(host string, dnsNames []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	now := time.Now()
	caName := fmt.Sprintf("%s-ca@%d", host, now.Unix())
	caKey, _, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: caName},
		DNSNames:              []string{caName},
		NotBefore:             now.Add(-validBefore),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	ca, caPEM, err := pki.Sign(template, template, caKey.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	key, keyPEM, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	_, certPEM, err = pki.Sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", host, now.Unix())},
		DNSNames:              dnsNames,
		IPAddresses:           ips,
		NotBefore:             now.Add(-validBefore),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, ca, key.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	return append(certPEM, caPEM...), keyPEM, nil
}
