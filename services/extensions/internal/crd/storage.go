package crd

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	registry "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"triune.dev/services/extensions/internal/scheme"
	"triune.dev/shared/storage/etcdstore"
)

// resource is the plural name of CustomResourceDefinition.
const resource = "customresourcedefinitions"

// APIGroup returns apiextensions.k8s.io over the storage of getter. CRDs are stored under
// kube-apiserver's key and in its encoding, JSON of v1beta1: large CRDs are smaller in it
// than in v1 and may exceed the size of an etcd request otherwise (kubernetes#82292).
func APIGroup(getter generic.RESTOptionsGetter) (*genericapiserver.APIGroupInfo, error) {
	stored := etcdstore.StoredAs(getter, scheme.Codecs, v1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
	crds, err := registry.NewREST(scheme.Scheme, stored)
	if err != nil {
		return nil, fmt.Errorf("make the storage of %s: %w", resource, err)
	}
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, scheme.Scheme, metav1.ParameterCodec, scheme.Codecs)
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		resource:             crdStorage{crds},
		resource + "/status": registry.NewStatusREST(scheme.Scheme, crds),
	}
	// v1beta1 is only stored, not served, since Kubernetes 1.22.
	info.PrioritizedVersions = []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	return &info, nil
}

// crdStorage is the storage of CRDs with a DeleteCollection that deletes their objects.
// The one that upstream inherits does not call Delete, which adds the finalizer, so the
// objects remain in etcd and reappear with a CRD of the same name.
type crdStorage struct {
	*registry.REST
}

// DeleteCollection calls Delete for each CRD and returns the CRDs as listed. It stops at
// the first error; a CRD that no longer exists is none.
func (d crdStorage) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *metainternalversion.ListOptions) (runtime.Object, error) {
	listed, err := d.List(ctx, listOptions)
	if err != nil {
		return nil, err
	}
	list, ok := listed.(*apiextensions.CustomResourceDefinitionList)
	if !ok {
		return nil, fmt.Errorf("listing %s gave a %T", resource, listed)
	}
	for i := range list.Items {
		// Delete sets the UID in the options, so each call gets a copy.
		if _, _, err := d.Delete(ctx, list.Items[i].Name, validate, options.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return list, nil
}
