package secrets

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"triune.dev/shared/process/pki"
)

// The keys of Secrets.
const (
	caKey         = "ca.crt"
	kubeconfigKey = "kubeconfig"
	nextCertKey   = "next.crt"
	nextKeyKey    = "next.key"
	previousKey   = "previous.crt"
)

// change is a Secret that has to be written, and why. One without a resource version
// has to be created.
type change struct {
	secret *corev1.Secret
	reason string
}

// plan compares existing Secrets with the list. It makes no requests, and its only clock
// is now.
type plan struct {
	list     *List
	have     map[string]*corev1.Secret
	now      time.Time
	rotation Rotation

	// changes are in the order in which they have to be written. A later plan completes
	// any prefix of them.
	changes []change
	// forget are changes that drop an authority. They are written last.
	forget []change
	// problems name the Secrets that somebody has to repair.
	problems []error
	issuers  map[string]*issuer
}

func newPlan(list *List, have map[string]*corev1.Secret, now time.Time, rotation Rotation) *plan {
	p := &plan{list: list, have: have, now: now, rotation: rotation, issuers: map[string]*issuer{}}
	for _, a := range list.Authorities {
		if err := p.authority(a); err != nil {
			p.problems = append(p.problems, fmt.Errorf("Secret %s: %w", list.secret(a.Name), err))
		}
	}
	p.checkRotation()
	for _, c := range list.Certificates {
		if err := p.leaf(c); err != nil {
			p.problems = append(p.problems, fmt.Errorf("Secret %s: %w", list.secret(c.Name), err))
		}
	}
	for _, name := range list.Keys {
		if err := p.key(name); err != nil {
			p.problems = append(p.problems, fmt.Errorf("Secret %s: %w", list.secret(name), err))
		}
	}
	p.changes = append(p.changes, p.forget...)
	return p
}

// secret returns a copy of the named Secret with data, and with the labels and annotations
// of the list. Other data in it stays.
func (p *plan) secret(name string, kind corev1.SecretType, data map[string][]byte) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: p.list.secret(name)}, Type: kind}
	if have := p.have[s.Name]; have != nil {
		s = have.DeepCopy()
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	maps.Copy(s.Labels, p.list.Labels)
	maps.Copy(s.Annotations, p.list.Annotations)
	maps.Copy(s.Data, data)
	return s
}

// unmarked returns why s has to be marked again, or nothing if it has the labels and
// annotations of the list.
func (p *plan) unmarked(s *corev1.Secret) string {
	for _, pair := range [][2]map[string]string{{p.list.Labels, s.Labels}, {p.list.Annotations, s.Annotations}} {
		for key, value := range pair[0] {
			if pair[1][key] != value {
				return "it is not marked with " + key
			}
		}
	}
	return ""
}

// key ensures a key without a certificate.
func (p *plan) key(name string) error {
	have := p.have[p.list.secret(name)]
	if have == nil {
		_, data, err := pki.NewKey()
		if err != nil {
			return err
		}
		p.changes = append(p.changes, change{p.secret(name, corev1.SecretTypeOpaque, map[string][]byte{corev1.TLSPrivateKeyKey: data}), "it did not exist"})
		return nil
	}
	if _, err := pki.ParseKey(have.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return fmt.Errorf("%s %w", corev1.TLSPrivateKeyKey, err)
	}
	if reason := p.unmarked(have); reason != "" {
		p.changes = append(p.changes, change{p.secret(name, "", nil), reason})
	}
	return nil
}

// pair reads a certificate and its key.
func pair(s *corev1.Secret, certKey, keyKey string) (*x509.Certificate, crypto.Signer, error) {
	certs, err := cert.ParseCertsPEM(s.Data[certKey])
	if err != nil {
		return nil, nil, fmt.Errorf("%s holds no usable certificate", certKey)
	}
	key, err := pki.ParseKey(s.Data[keyKey])
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", keyKey, err)
	}
	if !pki.SamePublicKey(key, certs[0].PublicKey) {
		return nil, nil, fmt.Errorf("%s does not belong to %s", keyKey, certKey)
	}
	return certs[0], key, nil
}

// due returns the time at which two thirds of the life of c are over.
func due(c *x509.Certificate) time.Time {
	issued := c.NotBefore.Add(pki.ClockSkew)
	return issued.Add(c.NotAfter.Sub(issued) / 3 * 2)
}

// errNoIssuer is the problem of a leaf whose authority has a problem.
var errNoIssuer = errors.New("its authority cannot be used")
