package customresource

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"

	"triune.dev/services/extensions/internal/scheme"
)

// storageOptions returns the storage options of a version of a CRD: those of the embedded
// getter, with kube-apiserver's resource prefix (group/plural) and a codec that writes JSON
// in the storage version. The codec decodes all stored versions to the served one, coerced
// and defaulted.
type storageOptions struct {
	generic.RESTOptionsGetter
	converter runtime.ObjectConvertor
	// storedAs and readAs are the versions in etcd and in memory.
	storedAs, readAs schema.GroupVersion
	schemas          *schemas
	// shared is an existing storage to use, whose owner destroys it; nil makes a new one.
	shared storage.Interface
}

// GetRESTOptions implements generic.RESTOptionsGetter. It ignores example, since the CRD
// determines the storage version.
func (o storageOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, nil)
	if err != nil {
		return options, fmt.Errorf("storage options of %s: %w", resource, err)
	}
	options.ResourcePrefix = resource.Group + "/" + resource.Resource
	if o.shared != nil {
		options.CountMetricPollPeriod = 0 // the owner of the storage counts its objects
		options.Decorator = func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object,
			storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return o.shared, func() {}, nil
		}
	}
	// The configuration may be shared with other resources.
	config := *options.StorageConfig
	config.GroupResource = resource
	config.EncodeVersioner = o.storedAs
	config.Codec = o.codec()
	options.StorageConfig = &config
	return options, nil
}

func (o storageOptions) codec() runtime.Codec {
	stored := storedCodec()
	codec := versioning.NewCodec(
		stored,
		coercingDecoder{Decoder: stored, coercer: coercer{schemas: o.schemas, fromStorage: true}},
		coercingConvertor{ObjectConvertor: o.converter, coercer: coercer{schemas: o.schemas}},
		creator{},
		crdserverscheme.NewUnstructuredObjectTyper(),
		defaulter{ObjectDefaulter: scheme.Scheme, schemas: o.schemas},
		o.storedAs,
		o.readAs,
		"customresource-storage",
	)
	return provingCodec{Codec: codec, schemas: o.schemas, version: o.readAs.Version, apiVersion: o.readAs.String()}
}

// storedCodec encodes JSON, or CBOR with its feature gate. It decodes both without the
// gate too, since stored objects may date from a time with it.
func storedCodec() runtime.Codec {
	asCBOR := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	var encoder runtime.Encoder = unstructured.UnstructuredJSONScheme
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		encoder = asCBOR
	}
	return runtime.NewCodec(encoder, recognizer.NewDecoder(asCBOR, unstructured.UnstructuredJSONScheme))
}
