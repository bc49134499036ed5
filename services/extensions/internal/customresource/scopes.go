package customresource

import (
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	registry "k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/scale/scheme/autoscalingv1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scopeBuilder makes the request scopes of one version, with which the handlers of
// k8s.io/apiserver serve an endpoint.
type scopeBuilder struct {
	serving    *serving
	version    *apiextensionsv1.CustomResourceDefinitionVersion
	parameters *runtime.Scheme
	typer      typer
	storage    registry.CustomResourceStorage
	// manage adds managers of managed fields to the scopes; reads need none.
	manage bool
}

func (b scopeBuilder) forResource() (*handlers.RequestScope, error) {
	s := b.serving
	kind := s.gvk(b.version.Name)
	types := mediaTypes(b.typer)
	scope := &handlers.RequestScope{
		Namer: handlers.ContextBasedNaming{
			Namer:         meta.NewAccessor(),
			ClusterScoped: s.clusterScoped(),
		},
		Serializer:          negotiatedSerializer{mediaTypes: types, converter: s.converter, schemas: s.schemas},
		ParameterCodec:      runtime.NewParameterCodec(b.parameters),
		StandardSerializers: withoutProtobuf(types),

		Creater:         creator{},
		Convertor:       s.converter,
		UnsafeConvertor: s.unsafeConverter,
		Defaulter:       defaulter{ObjectDefaulter: b.parameters, schemas: s.schemas},
		Typer:           b.typer,

		EquivalentResourceMapper: s.equivalents,
		Resource:                 kind.GroupVersion().WithResource(s.crd.Status.AcceptedNames.Plural),
		Kind:                     kind,
		// A custom resource has no internal version; in memory it has the version of
		// the request.
		HubGroupVersion:  kind.GroupVersion(),
		MetaGroupVersion: metav1.SchemeGroupVersion,

		TableConvertor:      b.storage.CustomResource,
		Authorizer:          s.config.Authorizer,
		MaxRequestBodyBytes: s.config.MaxRequestBodyBytes,
	}
	return scope, b.manageFields(scope, b.storage.CustomResource.GetResetFields())
}

func (b scopeBuilder) forStatus(resource *handlers.RequestScope) (*handlers.RequestScope, error) {
	scope := *resource
	scope.Subresource = "status"
	return &scope, b.manageFields(&scope, b.serving.statusResets)
}

// forScale serves autoscaling/v1 Scale, a built-in kind, at the custom resource's
// path.
func (b scopeBuilder) forScale(resource *handlers.RequestScope) (*handlers.RequestScope, error) {
	scope := *resource
	scope.Subresource = "scale"
	scope.Serializer = scaleCodecs()
	scope.Kind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	columns, err := tableconvertor.New(scaleColumns(b.version.Subresources.Scale))
	if err != nil {
		return nil, fmt.Errorf("make the table of scale: %w", err)
	}
	scope.TableConvertor = columns
	return &scope, b.manageFields(&scope, nil)
}

// manageFields adds the manager of metadata.managedFields to scope.
func (b scopeBuilder) manageFields(scope *handlers.RequestScope, resets map[fieldpath.APIVersion]*fieldpath.Set) error {
	if !b.manage {
		return nil
	}
	manager, err := managedfields.NewDefaultCRDFieldManager(
		b.serving.typeConverter,
		scope.Convertor,
		scope.Defaulter,
		scope.Creater,
		scope.Kind,
		scope.HubGroupVersion,
		scope.Subresource,
		fieldpath.NewExcludeFilterSetMap(resets),
	)
	if err != nil {
		return fmt.Errorf("make the field manager: %w", err)
	}
	scope.FieldManager = manager
	return nil
}

// scaleCodecs returns the codecs of Scale, which all custom resources share.
var scaleCodecs = sync.OnceValue(func() serializer.CodecFactory {
	gates := utilfeature.DefaultFeatureGate
	var opts []serializer.CodecFactoryOptionsMutator
	if gates.Enabled(features.CBORServingAndStorage) {
		opts = append(opts, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	if gates.Enabled(features.StreamingCollectionEncodingToJSON) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToJSON())
	}
	if gates.Enabled(features.StreamingCollectionEncodingToProtobuf) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToProtobuf())
	}
	return serializer.NewCodecFactory(scale.NewScaleConverter().Scheme(), opts...)
})
