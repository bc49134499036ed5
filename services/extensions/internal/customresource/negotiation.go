package customresource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"

	"triune.dev/services/extensions/internal/scheme"
)

// creator makes empty unstructured objects for decoders.
type creator struct{}

func (creator) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u, nil
}

// typer finds the kind of unstructured objects in their content, and of all others in a
// scheme.
type typer struct {
	unstructured runtime.ObjectTyper
	others       runtime.ObjectTyper
}

func newTyper(others runtime.ObjectTyper) typer {
	return typer{unstructured: crdserverscheme.NewUnstructuredObjectTyper(), others: others}
}

func (t typer) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := obj.(runtime.Unstructured); ok {
		return t.unstructured.ObjectKinds(obj)
	}
	return t.others.ObjectKinds(obj)
}

func (t typer) Recognizes(gvk schema.GroupVersionKind) bool {
	return t.others.Recognizes(gvk) || t.unstructured.Recognizes(gvk)
}

// newParameterScheme returns a scheme with the options of requests for objects of gv.
func newParameterScheme(gv schema.GroupVersion) *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddUnversionedTypes(gv, &metav1.ListOptions{}, &metav1.GetOptions{}, &metav1.DeleteOptions{})
	return s
}

// negotiatedSerializer decodes and encodes custom resources in the media types of the API.
// It implements runtime.NegotiatedSerializer.
type negotiatedSerializer struct {
	mediaTypes []runtime.SerializerInfo
	converter  runtime.ObjectConvertor
	schemas    *schemas
}

func (s negotiatedSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	return s.mediaTypes
}

func (s negotiatedSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return versioning.NewCodec(encoder, nil, s.converter, scheme.Scheme, scheme.Scheme, scheme.Scheme, gv, nil, "customresource")
}

// DecoderToVersion returns a decoder that does not convert: handlers check that the object
// of a request has the version of the path.
func (s negotiatedSerializer) DecoderToVersion(decoder runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	strict, ok := decoder.(interface{ IsStrict() bool })
	coercing := coercingDecoder{Decoder: decoder, coercer: coercer{
		schemas:       s.schemas,
		reportUnknown: ok && strict.IsStrict(),
	}}
	defaults := defaulter{ObjectDefaulter: scheme.Scheme, schemas: s.schemas}
	return versioning.NewCodec(nil, coercing, runtime.UnsafeObjectConvertor(scheme.Scheme), scheme.Scheme, scheme.Scheme, defaults, nil, gv, "customresource")
}

// mediaTypes returns the media types of requests and responses. Protobuf is for other
// objects (partial metadata, Status), not for custom resources; see withoutProtobuf.
func mediaTypes(t typer) []runtime.SerializerInfo {
	gates := utilfeature.DefaultFeatureGate
	newJSON := func(o json.SerializerOptions) *json.Serializer {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, creator{}, t, o)
	}
	streaming := gates.Enabled(features.StreamingCollectionEncodingToJSON)
	asProtobuf := protobuf.NewSerializerWithOptions(creator{}, t, protobuf.SerializerOptions{
		StreamingCollectionsEncoding: gates.Enabled(features.StreamingCollectionEncodingToProtobuf),
	})
	types := []runtime.SerializerInfo{
		{
			MediaType:        runtime.ContentTypeJSON,
			MediaTypeType:    "application",
			MediaTypeSubType: "json",
			EncodesAsText:    true,
			Serializer:       newJSON(json.SerializerOptions{StreamingCollectionsEncoding: streaming}),
			PrettySerializer: newJSON(json.SerializerOptions{Pretty: true}),
			StrictSerializer: newJSON(json.SerializerOptions{Strict: true, StreamingCollectionsEncoding: streaming}),
			StreamSerializer: &runtime.StreamSerializerInfo{
				EncodesAsText: true,
				Serializer:    newJSON(json.SerializerOptions{}),
				Framer:        json.Framer,
			},
		},
		{
			MediaType:        runtime.ContentTypeYAML,
			MediaTypeType:    "application",
			MediaTypeSubType: "yaml",
			EncodesAsText:    true,
			Serializer:       newJSON(json.SerializerOptions{Yaml: true}),
			StrictSerializer: newJSON(json.SerializerOptions{Yaml: true, Strict: true}),
		},
		{
			MediaType:        runtime.ContentTypeProtobuf,
			MediaTypeType:    "application",
			MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer:       asProtobuf,
			// Upstream has no strict serializer here and panics if a body is protobuf.
			// Protobuf ignores unknown fields, so strict decoding is the same.
			StrictSerializer: asProtobuf,
			StreamSerializer: &runtime.StreamSerializerInfo{
				Serializer: protobuf.NewRawSerializer(creator{}, t),
				Framer:     protobuf.LengthDelimitedFramer,
			},
		},
	}
	if gates.Enabled(features.CBORServingAndStorage) {
		types = append(types, cbor.NewSerializerInfo(creator{}, t))
	}
	return types
}

// withoutProtobuf returns the media types of custom resources. They have no protobuf
// schema, so a request that accepts only protobuf gets 406.
func withoutProtobuf(types []runtime.SerializerInfo) []runtime.SerializerInfo {
	var out []runtime.SerializerInfo
	for _, t := range types {
		if t.MediaType != runtime.ContentTypeProtobuf {
			out = append(out, t)
		}
	}
	return out
}
