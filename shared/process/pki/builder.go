package pki

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// builder compares the files of a directory with the wanted ones and collects those that
// must be written. After the first error its methods do nothing.
type builder struct {
	now     time.Time
	options Options
	pending []file
	err     error
}

// issuer is an authority in memory. key is nil if the operator keeps it elsewhere; then the
// authority cannot issue leaves.
type issuer struct {
	files Pair
	cert  *x509.Certificate
	key   crypto.Signer
}

// profile is the required content of a leaf certificate.
type profile struct {
	subject pkix.Name
	names   addresses
	usages  []x509.ExtKeyUsage
}

func serving(commonName string, names addresses) profile {
	return profile{
		subject: pkix.Name{CommonName: commonName},
		names:   names,
		usages:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
}

func client(commonName string, organizations ...string) profile {
	return profile{
		subject: pkix.Name{CommonName: commonName, Organization: organizations},
		usages:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// authority loads the CA in files, or makes one if there is none.
func (b *builder) authority(files Pair, commonName string) *issuer {
	ca := &issuer{files: files}
	if b.err != nil {
		return ca
	}
	if ca.cert, ca.key, b.err = readPair(files, true); b.err != nil {
		return ca
	}
	if ca.cert != nil {
		switch {
		case !ca.cert.IsCA:
			b.err = fmt.Errorf("%s is not a CA certificate", files.CertFile)
		case b.now.After(ca.cert.NotAfter):
			b.err = fmt.Errorf("the CA certificate %s expired on %s", files.CertFile, ca.cert.NotAfter.Format(time.DateOnly))
		case b.now.Before(ca.cert.NotBefore):
			b.err = fmt.Errorf("the CA certificate %s is valid from %s on: the clock, at %s, is slow",
				files.CertFile, ca.cert.NotBefore.UTC().Format(time.DateTime), b.now.UTC().Format(time.DateTime))
		}
		return ca
	}
	if ca.key == nil {
		ca.key = b.newKey(files.KeyFile)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             b.now.Add(-ClockSkew),
		NotAfter:              b.now.Add(b.options.CALifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	ca.cert = b.sign(files.CertFile, template, template, ca.key, ca.key)
	return ca
}

// leaf checks the leaf in files against want. It issues the leaf if it is missing, about to
// expire, or incomplete.
func (b *builder) leaf(files Pair, ca *issuer, want profile) {
	if b.err != nil {
		return
	}
	have, key, err := readPair(files, false)
	if err != nil {
		b.err = err
		return
	}
	reason := "it does not exist"
	if have != nil {
		if err := have.CheckSignatureFrom(ca.cert); err != nil {
			b.err = fmt.Errorf("%s was not issued by %s", files.CertFile, ca.files.CertFile)
			return
		}
		if reason = want.missing(have, b.now.Add(b.options.RenewBefore)); reason == "" {
			return
		}
	}
	if ca.key == nil {
		b.err = fmt.Errorf("%s cannot be issued (%s): %s is not there", files.CertFile, reason, ca.files.KeyFile)
		return
	}
	if key == nil {
		key = b.newKey(files.KeyFile)
	}
	notAfter := b.now.Add(b.options.LeafLifetime)
	if ca.cert.NotAfter.Before(notAfter) {
		notAfter = ca.cert.NotAfter
	}
	b.sign(files.CertFile, &x509.Certificate{
		Subject:               want.subject,
		DNSNames:              want.names.dns,
		IPAddresses:           want.names.ips,
		NotBefore:             b.now.Add(-ClockSkew),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           want.usages,
		BasicConstraintsValid: true,
	}, ca.cert, key, ca.key)
}

// missing returns the reason why have is not the wanted certificate or expires before until,
// empty if there is none. Additional names are allowed.
func (w profile) missing(have *x509.Certificate, until time.Time) string {
	if until.After(have.NotAfter) {
		return "it expires on " + have.NotAfter.Format(time.DateOnly)
	}
	if have.Subject.CommonName != w.subject.CommonName {
		return "it names " + have.Subject.CommonName
	}
	got, want := slices.Sorted(slices.Values(have.Subject.Organization)), slices.Sorted(slices.Values(w.subject.Organization))
	if !slices.Equal(got, want) {
		return "it names other groups"
	}
	for _, name := range w.names.dns {
		if !slices.Contains(have.DNSNames, name) {
			return "it lacks the name " + name
		}
	}
	for _, ip := range w.names.ips {
		if !slices.ContainsFunc(have.IPAddresses, ip.Equal) {
			return "it lacks the address " + ip.String()
		}
	}
	for _, usage := range w.usages {
		if !slices.Contains(have.ExtKeyUsage, usage) {
			return "it lacks a key usage"
		}
	}
	return ""
}

// signingKey ensures the key pair of ServiceAccount tokens. The public file may hold more
// keys: old ones stay in it until their tokens expire.
func (b *builder) signingKey(private, public string) {
	if b.err != nil {
		return
	}
	key, err := readKey(private)
	if err != nil {
		b.err = err
		return
	}
	known, err := keyutil.PublicKeysFromFile(public)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		b.err = fmt.Errorf("%s holds no usable public key", public)
		return
	case key == nil:
		b.err = fmt.Errorf("%s is there but %s is not", public, private)
		return
	case !slices.ContainsFunc(known, func(k any) bool { return SamePublicKey(key, k) }):
		b.err = fmt.Errorf("%s does not hold the public key of %s", public, private)
		return
	default:
		return
	}
	if key == nil {
		key = b.newKey(private)
	}
	if b.err != nil {
		return
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		b.err = fmt.Errorf("encode %s: %w", public, err)
		return
	}
	b.pending = append(b.pending, file{path: public, mode: 0o644, data: pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der})})
}

func (b *builder) newKey(path string) crypto.Signer {
	key, data, err := NewKey()
	if err != nil {
		b.err = fmt.Errorf("%s: %w", path, err)
		return nil
	}
	b.pending = append(b.pending, file{path: path, mode: 0o600, data: data})
	return key
}

// sign issues template for key and adds it to the pending files.
func (b *builder) sign(path string, template, parent *x509.Certificate, key, signer crypto.Signer) *x509.Certificate {
	if b.err != nil {
		return template
	}
	issued, data, err := Sign(template, parent, key.Public(), signer)
	if err != nil {
		b.err = fmt.Errorf("issue %s: %w", path, err)
		return template
	}
	b.pending = append(b.pending, file{path: path, mode: 0o644, data: data})
	return issued
}

// readPair reads the existing files of a pair. A key may lack its certificate, as after an
// interrupted first start. A certificate may lack its key only if keyElsewhere is set.
func readPair(files Pair, keyElsewhere bool) (*x509.Certificate, crypto.Signer, error) {
	key, err := readKey(files.KeyFile)
	if err != nil {
		return nil, nil, err
	}
	data, err := os.ReadFile(files.CertFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, key, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read certificate: %w", err)
	}
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s holds no usable certificate", files.CertFile)
	}
	switch {
	case key == nil && !keyElsewhere:
		return nil, nil, fmt.Errorf("%s is there but %s is not", files.CertFile, files.KeyFile)
	case key != nil && !SamePublicKey(key, certs[0].PublicKey):
		return nil, nil, fmt.Errorf("%s does not belong to %s", files.KeyFile, files.CertFile)
	}
	return certs[0], key, nil
}

// readKey returns nil without an error if there is no file.
func readKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	key, err := ParseKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return key, nil
}
