package customresource

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// errTerminating is the cause in the response.
var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// noCreate is the admission of a CRD that is being deleted. It forbids creates, or deleting
// the objects might never end. The embedded admission, which may be nil, handles other
// operations.
type noCreate struct {
	admission.Interface
}

func (n noCreate) Handles(operation admission.Operation) bool {
	return operation == admission.Create || n.Interface != nil && n.Interface.Handles(operation)
}

func (n noCreate) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := n.refuse(a); err != nil {
		return err
	}
	if mutating, ok := n.Interface.(admission.MutationInterface); ok {
		return mutating.Admit(ctx, a, o)
	}
	return nil
}

func (n noCreate) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := n.refuse(a); err != nil {
		return err
	}
	if validating, ok := n.Interface.(admission.ValidationInterface); ok {
		return validating.Validate(ctx, a, o)
	}
	return nil
}

func (n noCreate) refuse(a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return nil
	}
	return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errTerminating)
}
