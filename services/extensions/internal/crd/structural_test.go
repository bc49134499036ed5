package crd

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// TestForgetDeleted checks that the record of a generation is dropped with its CRD.
func TestForgetDeleted(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	c := newSchemaOnce(nil, nil)
	lister := schemaOnceLister{listers.NewCustomResourceDefinitionLister(indexer), c}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "things.example.com", UID: "a", Generation: 1}}
	if err := indexer.Add(crd); err != nil {
		t.Fatal(err)
	}
	if _, err := lister.Get(crd.Name); err != nil || len(c.seen) != 1 {
		t.Fatalf("%v, and %d are recorded", err, len(c.seen))
	}
	if err := indexer.Delete(crd); err != nil {
		t.Fatal(err)
	}
	if _, err := lister.Get(crd.Name); !apierrors.IsNotFound(err) || len(c.seen) != 0 {
		t.Errorf("%v, and %d are recorded", err, len(c.seen))
	}
}
