package crd

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// establishedAtOnce is what the naming controller writes with where no other replica
// must learn a CRD's names before it is established: with the names accepted the CRD is
// established, in one write instead of two.
type establishedAtOnce struct {
	client.CustomResourceDefinitionsGetter
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (e establishedAtOnce) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return establishing{e.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

type establishing struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus changes crd, which is the controller's own copy.
func (e establishing) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	if installing(crd) {
		apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
			Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
		})
	}
	return e.CustomResourceDefinitionInterface.UpdateStatus(ctx, crd, opts)
}

// installing tells whether crd lacks nothing but to be established. One with a
// conversion webhook is left to the establishing controller, which looks at its CA.
func installing(crd *apiextensionsv1.CustomResourceDefinition) bool {
	established := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	return established != nil && established.Status == apiextensionsv1.ConditionFalse && established.Reason == "Installing" &&
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) &&
		(crd.Spec.Conversion == nil || crd.Spec.Conversion.Webhook == nil)
}
