package compactcrd

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Client writes outlines: UpdateStatus takes one and returns one. All else is
// Getter's.
type Client struct {
	Getter client.CustomResourceDefinitionsGetter
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (c Client) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return writer{c.Getter.CustomResourceDefinitions()}
}

type writer struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus sends no schemas: the server takes the spec from what is stored.
func (w writer) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	sent, err := Bare(crd)
	if err != nil {
		return nil, err
	}
	stored, err := w.CustomResourceDefinitionInterface.UpdateStatus(ctx, sent, opts)
	if err != nil {
		return stored, err
	}
	if _, err := Pack(stored); err != nil {
		return nil, err
	}
	return stored, nil
}
