package compactcrd

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Client is Getter with an UpdateStatus that takes and returns compact CRDs.
type Client struct {
	Getter client.CustomResourceDefinitionsGetter
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (c Client) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return statusWriter{c.Getter.CustomResourceDefinitions()}
}

type statusWriter struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus sends no schemas: the server keeps the stored spec.
func (w statusWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	sent, err := WithoutSchemas(crd)
	if err != nil {
		return nil, err
	}
	stored, err := w.CustomResourceDefinitionInterface.UpdateStatus(ctx, sent, opts)
	if err != nil {
		return stored, err
	}
	if _, err := Compact(stored); err != nil {
		return nil, err
	}
	return stored, nil
}
