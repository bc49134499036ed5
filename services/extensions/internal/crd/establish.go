package crd

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// establishingGetter is the client of the naming controller if there is one replica. The
// write that accepts the names of a CRD also establishes it, which saves a second write.
type establishingGetter struct {
	client.CustomResourceDefinitionsGetter
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (e establishingGetter) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return establishingWriter{e.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

type establishingWriter struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus changes crd, which is a copy of the controller.
func (e establishingWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	if installing(crd) {
		apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
			Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
		})
	}
	return e.CustomResourceDefinitionInterface.UpdateStatus(ctx, crd, opts)
}

// installing reports whether crd can be established. It returns false for a CRD with a
// conversion webhook, whose CA the establishing controller checks.
func installing(crd *apiextensionsv1.CustomResourceDefinition) bool {
	established := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	return established != nil && established.Status == apiextensionsv1.ConditionFalse && established.Reason == "Installing" &&
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) &&
		(crd.Spec.Conversion == nil || crd.Spec.Conversion.Webhook == nil)
}
