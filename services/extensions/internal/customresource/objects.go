package customresource

import (
	"context"
	"errors"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	registry "k8s.io/apiextensions-apiserver/pkg/registry/customresource"
)

// objects lists and deletes the objects of one generation, in the storage version. Each
// call acquires the generation, because the CRD may change while all its objects are
// deleted. Calls then return errRetired, and the finalizing controller starts again.
type objects struct {
	generation *generation
}

func (o objects) NewList() runtime.Object {
	return &metav1.PartialObjectMetadataList{}
}

func (o objects) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	var list runtime.Object
	err := o.with(reading, func(storage *registry.REST) (err error) {
		list, err = storage.List(ctx, options)
		return err
	})
	return list, err
}

func (o objects) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *metainternalversion.ListOptions) (runtime.Object, error) {
	var deleted runtime.Object
	err := o.with(writing, func(storage *registry.REST) (err error) {
		deleted, err = storage.DeleteCollection(ctx, validate, options, listOptions)
		return err
	})
	return deleted, err
}

// ConvertToTable implements rest.Lister; the finalizing controller does not call it.
func (o objects) ConvertToTable(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error) {
	return nil, errors.ErrUnsupported
}

func reading(v *version) (*endpoints, error) { return v.reads, nil }

func writing(v *version) (*endpoints, error) { return v.writes.get() }

func (o objects) with(endpointsOf func(*version) (*endpoints, error), do func(*registry.REST) error) error {
	s, release, err := o.generation.acquire(short)
	if err != nil {
		return err
	}
	defer release()
	v, err := s.version(s.storageVersion)
	if err != nil {
		return err
	}
	e, err := endpointsOf(v)
	if err != nil {
		return err
	}
	return do(e.storage.CustomResource)
}
