package secrets

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"

	"triune.dev/shared/process/pki"
)

// leaf ensures a leaf, the bundle of its authority, and its kubeconfig.
func (p *plan) leaf(c Certificate) error {
	have, ca := p.have[p.list.secret(c.Name)], p.issuers[c.Authority]
	if ca == nil {
		return errNoIssuer
	}
	data := map[string][]byte{}
	reasons := []string{"it did not exist"}
	if have != nil {
		reason, err := p.missing(c, have, ca)
		if err != nil {
			return err
		}
		reasons = nil
		if reason != "" {
			reasons = []string{reason}
		}
		data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = have.Data[corev1.TLSCertKey], have.Data[corev1.TLSPrivateKeyKey]
	}
	if len(reasons) > 0 {
		var err error
		if data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], err = p.issue(c, ca); err != nil {
			return err
		}
	}
	data[caKey] = ca.bundle()
	if c.Kubeconfig != "" {
		var err error
		if data[kubeconfigKey], err = pki.Kubeconfig(c.Kubeconfig, data[caKey], data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]); err != nil {
			return err
		}
	}
	if have != nil && len(reasons) == 0 {
		if !bytes.Equal(have.Data[caKey], data[caKey]) {
			reasons = append(reasons, "other authorities are to be trusted")
		}
		if !bytes.Equal(have.Data[kubeconfigKey], data[kubeconfigKey]) && c.Kubeconfig != "" {
			reasons = append(reasons, "its kubeconfig was another")
		}
		if reason := p.unmarked(have); reason != "" {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) > 0 {
		p.changes = append(p.changes, change{p.secret(c.Name, corev1.SecretTypeTLS, data), strings.Join(reasons, ", ")})
	}
	return nil
}

// missing returns why the leaf in have has to be issued again, or nothing.
func (p *plan) missing(c Certificate, have *corev1.Secret, ca *issuer) (string, error) {
	leaf, _, err := pair(have, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	if err != nil {
		return "", err
	}
	switch {
	case leaf.CheckSignatureFrom(ca.cert) == nil:
	case p.wasTrusted(c.Authority, leaf):
		return "its authority has been replaced", nil
	default:
		return "", fmt.Errorf("%s was not issued by %s", corev1.TLSCertKey, p.list.secret(c.Authority))
	}
	lifetime := p.lifetime(c)
	switch {
	case !p.now.Before(due(leaf)):
		return "two thirds of its life are over, it expires on " + leaf.NotAfter.Format(time.DateOnly), nil
	case leaf.NotAfter.Sub(leaf.NotBefore) > lifetime+pki.ClockSkew:
		return fmt.Sprintf("it lives longer than %v", lifetime), nil
	case leaf.Subject.CommonName != c.CommonName || !same(leaf.Subject.Organization, c.Organizations, strings.Compare):
		return "it is somebody else's", nil
	case !same(leaf.DNSNames, c.Names, strings.Compare) || !same(addresses(leaf.IPAddresses), addresses(c.ips()), strings.Compare):
		return "it holds for other names", nil
	case !same(leaf.ExtKeyUsage, c.usages(), cmp.Compare):
		return "it is for another usage", nil
	}
	return "", nil
}

// wasTrusted reports whether leaf was issued by a current, next or previous authority in
// the Secret of authority, as it is before the plan is carried out.
func (p *plan) wasTrusted(authority string, leaf *x509.Certificate) bool {
	s := p.have[p.list.secret(authority)]
	for _, key := range []string{corev1.TLSCertKey, nextCertKey, previousKey} {
		certs, err := cert.ParseCertsPEM(s.Data[key])
		if err == nil && leaf.CheckSignatureFrom(certs[0]) == nil {
			return true
		}
	}
	return false
}

func (p *plan) lifetime(c Certificate) time.Duration {
	return cmp.Or(c.Lifetime.Duration, p.list.Lifetime.Duration)
}

// issue makes a leaf with a key of its own, and returns both in PEM.
func (p *plan) issue(c Certificate, ca *issuer) (certificate, private []byte, err error) {
	key, private, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	notAfter := p.now.Add(p.lifetime(c))
	if ca.cert.NotAfter.Before(notAfter) {
		notAfter = ca.cert.NotAfter
	}
	_, certificate, err = pki.Sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: c.CommonName, Organization: c.Organizations},
		DNSNames:              c.Names,
		IPAddresses:           c.ips(),
		NotBefore:             p.now.Add(-pki.ClockSkew),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           c.usages(),
		BasicConstraintsValid: true,
	}, ca.cert, key.Public(), ca.key)
	return certificate, private, err
}

// same reports whether two sets are equal.
func same[T comparable](a, b []T, compare func(T, T) int) bool {
	sorted := func(all []T) []T { return slices.Compact(slices.SortedFunc(slices.Values(all), compare)) }
	return slices.Equal(sorted(a), sorted(b))
}

func addresses(ips []net.IP) (all []string) {
	for _, ip := range ips {
		all = append(all, ip.String())
	}
	return all
}
