package crd

import (
	"context"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"triune.dev/services/extensions/internal/compactcrd"
)

// schemaOnce is the informer and the client of the controller that checks schemas. The
// controller runs at every change of a CRD, but needs the schemas only once for each
// generation: if it finds a problem, it writes a condition. So schemaOnce returns a CRD
// without its schemas if the controller has seen this generation of it, the CRD has no
// such condition, and the controller has not tried to write one since.
type schemaOnce struct {
	informers.CustomResourceDefinitionInformer
	client.CustomResourceDefinitionsGetter

	mu sync.Mutex
	// seen holds the last generations that were returned with schemas, by name.
	seen map[string]seenGeneration
}

type seenGeneration struct {
	uid        types.UID
	generation int64
}

func newSchemaOnce(crds informers.CustomResourceDefinitionInformer, writer client.CustomResourceDefinitionsGetter) *schemaOnce {
	return &schemaOnce{crds, writer, sync.Mutex{}, map[string]seenGeneration{}}
}

// Lister implements informers.CustomResourceDefinitionInformer.
func (c *schemaOnce) Lister() listers.CustomResourceDefinitionLister {
	return schemaOnceLister{c.CustomResourceDefinitionInformer.Lister(), c}
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (c *schemaOnce) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return schemaOnceWriter{c.CustomResourceDefinitionsGetter.CustomResourceDefinitions(), c}
}

func (c *schemaOnce) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, name)
}

// markSeen records the generation of crd and reports whether it was not recorded before.
func (c *schemaOnce) markSeen(crd *apiextensionsv1.CustomResourceDefinition) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := seenGeneration{crd.UID, crd.Generation}
	known := c.seen[crd.Name] == now
	c.seen[crd.Name] = now
	return !known
}

type schemaOnceLister struct {
	listers.CustomResourceDefinitionLister
	once *schemaOnce
}

// Get returns a CRD, with its schemas if the controller must check them.
func (l schemaOnceLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := l.CustomResourceDefinitionLister.Get(name)
	if err != nil {
		l.once.forget(name) // the CRD has been deleted
		return nil, err
	}
	if l.once.markSeen(crd) || apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema) != nil || crd.Spec.PreserveUnknownFields {
		return compactcrd.Expand(crd)
	}
	return compactcrd.WithoutSchemas(crd)
}

type schemaOnceWriter struct {
	client.CustomResourceDefinitionInterface
	once *schemaOnce
}

func (w schemaOnceWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	w.once.forget(crd.Name)
	return w.CustomResourceDefinitionInterface.UpdateStatus(ctx, crd, opts)
}
