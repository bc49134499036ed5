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

// storageOptions gives a version of a CRD its storage: the options of the
// embedded getter, with kube-apiserver's key below the prefix (group/plural) and
// with a codec that writes JSON in the storage version and reads, coerced and
// defaulted, whatever was ever written, in the version to serve.
type storageOptions struct {
	generic.RESTOptionsGetter
	converter runtime.ObjectConvertor
	// storedAs and readAs are the versions in etcd and in memory.
	storedAs, readAs schema.GroupVersion
	schemas          *schemas
	// shared is a storage to use, which somebody else destroys; nil makes one.
	shared storage.Interface
}

// GetRESTOptions ignores example: the version of a custom resource in storage is
// its CRD's to say.
func (o storageOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, nil)
	if err != nil {
		return options, fmt.Errorf("storage options of %s: %w", resource, err)
	}
	options.ResourcePrefix = resource.Group + "/" + resource.Resource
	if o.shared != nil {
		options.CountMetricPollPeriod = 0 // who made it counts
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
	stored := storedForm()
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

// storedForm writes JSON, or CBOR behind its feature gate, and reads both
// whatever the gate says: it may have been on before.
func storedForm() runtime.Codec {
	asCBOR := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	var encoder runtime.Encoder = unstructured.UnstructuredJSONScheme
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		encoder = asCBOR
	}
	return runtime.NewCodec(encoder, recognizer.NewDecoder(asCBOR, unstructured.UnstructuredJSONScheme))
}
