package definition

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	registry "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"triune.dev/services/extensions/internal/scheme"
)

// resource is the plural name of CustomResourceDefinition.
const resource = "customresourcedefinitions"

// APIGroup returns apiextensions.k8s.io over the storage that getter gives. CRDs
// are stored under kube-apiserver's key and in its encoding, which getter need not
// know: JSON of v1beta1, because a large CRD is smaller in it than in v1 and may
// fit into one etcd request only so (kubernetes#82292).
func APIGroup(getter generic.RESTOptionsGetter) (*genericapiserver.APIGroupInfo, error) {
	crds, err := registry.NewREST(scheme.Scheme, storageOptions{getter})
	if err != nil {
		return nil, fmt.Errorf("make the storage of %s: %w", resource, err)
	}
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, scheme.Scheme, metav1.ParameterCodec, scheme.Codecs)
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		resource:             crds,
		resource + "/status": registry.NewStatusREST(scheme.Scheme, crds),
	}
	// v1beta1 is only stored, not served, since Kubernetes 1.22.
	info.PrioritizedVersions = []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	return &info, nil
}

// storageOptions puts CRDs where kube-apiserver puts them.
type storageOptions struct {
	generic.RESTOptionsGetter
}

func (o storageOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, fmt.Errorf("storage options of %s: %w", resource, err)
	}
	options.ResourcePrefix = resource.Group + "/" + resource.Resource
	storage := *options.StorageConfig
	storage.GroupResource = resource
	storage.Codec = scheme.Codecs.LegacyCodec(v1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
	storage.EncodeVersioner = runtime.NewMultiGroupVersioner(v1beta1.SchemeGroupVersion, schema.GroupKind{Group: v1beta1.GroupName})
	options.StorageConfig = &storage
	return options, nil
}
