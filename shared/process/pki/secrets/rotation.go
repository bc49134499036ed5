package secrets

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"triune.dev/shared/process/pki"
)

// Rotation is a step of the replacement of all authorities, as after a theft of their
// keys.
type Rotation string

// The steps, in their order.
const (
	// Trust makes a new authority beside each one, and has both trusted.
	Trust Rotation = "trust"
	// Issue has the new authorities issue all leaves. The old ones stay trusted.
	Issue Rotation = "issue"
	// Done forgets the old authorities. Right after Trust it forgets the new ones.
	Done Rotation = ""
)

// Rotations are all steps.
var Rotations = []Rotation{Trust, Issue, Done}

// step holds the changes of a rotation to the Secret of an authority.
type step struct {
	data    map[string][]byte
	drop    []string
	reasons []string
	// forgets: leaves have to be written before the Secret of the authority.
	forgets bool
}

// rotate takes ca to the wanted step.
func (p *plan) rotate(a Authority, have *corev1.Secret, ca *issuer) (step, error) {
	switch {
	case p.rotation == Trust && ca.previous != nil:
		return step{}, fmt.Errorf("the last rotation is at the step %q: end it first", Issue)
	case p.rotation == Trust && ca.next == nil:
		key, keyData, err := pki.NewKey()
		if err != nil {
			return step{}, err
		}
		// Verifiers find an authority by its name: two of the same name cost them a
		// second try, and some of them stop at the first.
		name := pkix.Name{CommonName: a.CommonName + p.now.UTC().Format("-20060102150405")}
		next, certData, err := p.sign(name, nil, key)
		if err != nil {
			return step{}, err
		}
		ca.next = next
		return step{data: map[string][]byte{nextCertKey: certData, nextKeyKey: keyData}, reasons: []string{"the next authority is to be trusted"}}, nil
	case p.rotation == Issue && ca.next != nil:
		_, key, err := pair(have, nextCertKey, nextKeyKey)
		if err != nil {
			return step{}, err
		}
		data := map[string][]byte{
			corev1.TLSCertKey: have.Data[nextCertKey], corev1.TLSPrivateKeyKey: have.Data[nextKeyKey],
			previousKey: pki.EncodeCertificate(ca.cert),
		}
		ca.cert, ca.key, ca.next, ca.previous = ca.next, key, nil, ca.cert
		return step{data: data, drop: []string{nextCertKey, nextKeyKey}, reasons: []string{"the next authority is to issue"}}, nil
	case p.rotation == Done && (ca.next != nil || ca.previous != nil):
		return p.endRotation(ca), nil
	}
	return step{}, nil
}

// endRotation drops the authorities that do not issue.
func (p *plan) endRotation(ca *issuer) step {
	ca.next, ca.previous = nil, nil
	return step{drop: []string{nextCertKey, nextKeyKey, previousKey}, reasons: []string{"the rotation has ended"}, forgets: true}
}

// checkRotation adds a problem if the step is Issue but Trust was skipped.
func (p *plan) checkRotation() {
	if p.rotation != Issue {
		return
	}
	for _, ca := range p.issuers {
		if ca.previous != nil {
			return
		}
	}
	p.problems = append(p.problems, fmt.Errorf("rotation %q: %w", Issue, errors.New("no authority has a next one; the step before is "+string(Trust))))
}
