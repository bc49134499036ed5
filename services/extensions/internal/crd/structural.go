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

// checked is what the controller of structural schemas reads and writes CRDs with: it
// looks at schemas on every change of a CRD, and is shown those of a generation once.
// What it finds it writes; so of a generation that it has seen, that has no condition
// and about which it did not try to write, it knows that there is nothing to say.
type checked struct {
	informers.CustomResourceDefinitionInformer
	client.CustomResourceDefinitionsGetter

	mu sync.Mutex
	// seen holds the last generations that were shown whole, by name.
	seen map[string]seenGeneration
}

type seenGeneration struct {
	uid        types.UID
	generation int64
}

func newChecked(crds informers.CustomResourceDefinitionInformer, writer client.CustomResourceDefinitionsGetter) *checked {
	return &checked{crds, writer, sync.Mutex{}, map[string]seenGeneration{}}
}

// Lister implements informers.CustomResourceDefinitionInformer.
func (c *checked) Lister() listers.CustomResourceDefinitionLister {
	return checkedLister{c.CustomResourceDefinitionInformer.Lister(), c}
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (c *checked) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return checkedWriter{c.CustomResourceDefinitionsGetter.CustomResourceDefinitions(), c}
}

func (c *checked) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, name)
}

// first notes a generation and tells whether it was not known.
func (c *checked) first(crd *apiextensionsv1.CustomResourceDefinition) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := seenGeneration{crd.UID, crd.Generation}
	known := c.seen[crd.Name] == now
	c.seen[crd.Name] = now
	return !known
}

type checkedLister struct {
	listers.CustomResourceDefinitionLister
	checked *checked
}

// Get returns a CRD with its schemas, or without those that have been looked at.
func (l checkedLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := l.CustomResourceDefinitionLister.Get(name)
	if err != nil {
		l.checked.forget(name) // it has been deleted
		return nil, err
	}
	if l.checked.first(crd) || apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema) != nil || crd.Spec.PreserveUnknownFields {
		return compactcrd.Whole(crd)
	}
	return compactcrd.Bare(crd)
}

type checkedWriter struct {
	client.CustomResourceDefinitionInterface
	checked *checked
}

func (w checkedWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	w.checked.forget(crd.Name)
	return w.CustomResourceDefinitionInterface.UpdateStatus(ctx, crd, opts)
}
