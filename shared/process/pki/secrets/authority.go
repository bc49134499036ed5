package secrets

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"

	"triune.dev/shared/process/pki"
)

// issuer is an authority in memory.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
	// next is trusted but does not issue yet, previous is trusted but no longer issues.
	// At most one of them is set.
	next, previous *x509.Certificate
}

// bundle returns the PEM certificates that verify all leaves of the authority.
func (i *issuer) bundle() []byte {
	var b bytes.Buffer
	for _, c := range i.trusted() {
		b.Write(pki.EncodeCertificate(c))
	}
	return b.Bytes()
}

func (i *issuer) trusted() []*x509.Certificate {
	return slices.DeleteFunc([]*x509.Certificate{i.cert, i.next, i.previous}, func(c *x509.Certificate) bool { return c == nil })
}

// authority ensures an authority and the step of its rotation.
func (p *plan) authority(a Authority) error {
	have := p.have[p.list.secret(a.Name)]
	if have == nil {
		return p.newAuthority(a)
	}
	ca, err := p.readAuthority(have)
	if err != nil {
		return err
	}
	data, reasons := map[string][]byte{}, []string{}
	selfSigned := ca.cert.CheckSignatureFrom(ca.cert) == nil
	if selfSigned && !p.now.Before(due(ca.cert)) {
		// The same name and key: what it has issued stays valid.
		renewed, encoded, err := p.sign(ca.cert.Subject, ca.cert.SubjectKeyId, ca.key)
		if err != nil {
			return err
		}
		reasons = append(reasons, "it expires on "+ca.cert.NotAfter.Format(time.DateOnly))
		ca.cert, data[corev1.TLSCertKey] = renewed, encoded
	}
	step, err := p.rotate(a, have, ca)
	if err != nil {
		return err
	}
	p.issuers[a.Name] = ca
	reasons = append(reasons, step.reasons...)
	if reason := p.unmarked(have); reason != "" {
		reasons = append(reasons, reason)
	}
	if len(reasons) == 0 {
		return nil
	}
	s := p.secret(a.Name, "", data)
	for key, value := range step.data {
		s.Data[key] = value
	}
	for _, key := range step.drop {
		delete(s.Data, key)
	}
	c := change{s, strings.Join(reasons, ", ")}
	if step.forgets {
		p.forget = append(p.forget, c)
	} else {
		p.changes = append(p.changes, c)
	}
	return nil
}

func (p *plan) newAuthority(a Authority) error {
	for _, c := range p.list.Certificates {
		if c.Authority == a.Name && p.have[p.list.secret(c.Name)] != nil {
			return fmt.Errorf("does not exist, but %s does, which it has issued: restore it, or delete all that it has issued", p.list.secret(c.Name))
		}
	}
	key, keyData, err := pki.NewKey()
	if err != nil {
		return err
	}
	ca, certData, err := p.sign(pkix.Name{CommonName: a.CommonName}, nil, key)
	if err != nil {
		return err
	}
	p.issuers[a.Name] = &issuer{cert: ca, key: key}
	p.changes = append(p.changes, change{p.secret(a.Name, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: certData, corev1.TLSPrivateKeyKey: keyData,
	}), "it did not exist"})
	return nil
}

// sign makes the certificate of an authority for key.
func (p *plan) sign(subject pkix.Name, keyID []byte, key crypto.Signer) (*x509.Certificate, []byte, error) {
	template := &x509.Certificate{
		Subject:               subject,
		SubjectKeyId:          keyID,
		NotBefore:             p.now.Add(-pki.ClockSkew),
		NotAfter:              p.now.Add(p.list.AuthorityLifetime.Duration),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	return pki.Sign(template, template, key.Public(), key)
}

func (p *plan) readAuthority(s *corev1.Secret) (*issuer, error) {
	ca := &issuer{}
	var err error
	if ca.cert, ca.key, err = pair(s, corev1.TLSCertKey, corev1.TLSPrivateKeyKey); err != nil {
		return nil, err
	}
	if !ca.cert.IsCA {
		return nil, fmt.Errorf("%s is not the certificate of an authority", corev1.TLSCertKey)
	}
	if p.now.After(ca.cert.NotAfter) {
		return nil, fmt.Errorf("%s expired on %s", corev1.TLSCertKey, ca.cert.NotAfter.Format(time.DateOnly))
	}
	if s.Data[nextCertKey] != nil || s.Data[nextKeyKey] != nil {
		if ca.next, _, err = pair(s, nextCertKey, nextKeyKey); err != nil {
			return nil, err
		}
	}
	if data := s.Data[previousKey]; data != nil {
		certs, err := cert.ParseCertsPEM(data)
		if err != nil {
			return nil, fmt.Errorf("%s holds no usable certificate", previousKey)
		}
		ca.previous = certs[0]
	}
	if ca.next != nil && ca.previous != nil {
		return nil, errors.New("holds a next and a previous authority at once")
	}
	return ca, nil
}
