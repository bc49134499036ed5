package reads

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/apis/example"
	exampleinstall "k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
)

// examples adds a kind with an internal version, which is converted and defaulted.
func (w *world) examples(t testing.TB) *resource {
	scheme := runtime.NewScheme()
	exampleinstall.Install(scheme)
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	gvr := examplev1.SchemeGroupVersion.WithResource("pods")
	scope := builtinScope(scheme, gvr, "Pod", true)
	scope.HubGroupVersion = example.SchemeGroupVersion
	return w.add(t, kindConfig{
		gvr: gvr, kind: "Pod", namespaced: true, scope: scope,
		codec:   codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), examplev1.SchemeGroupVersion, example.SchemeGroupVersion),
		newFunc: func() runtime.Object { return &example.Pod{} }, newList: func() runtime.Object { return &example.PodList{} },
	})
}

// customSerializer reads and writes unstructured objects.
type customSerializer struct {
	types []runtime.SerializerInfo
}

// customTyper also recognizes Status, the kind of errors.
type customTyper struct{ unstructured runtime.ObjectTyper }

func (t customTyper) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := obj.(*metav1.Status); ok {
		return []schema.GroupVersionKind{{Version: "v1", Kind: "Status"}}, true, nil
	}
	return t.unstructured.ObjectKinds(obj)
}

func (customTyper) Recognizes(schema.GroupVersionKind) bool { return true }

func (s customSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.types }

func (customSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	typer := customTyper{unstructuredscheme.NewUnstructuredObjectTyper()}
	return versioning.NewCodec(e, nil, customConvertor{}, unstructuredscheme.NewUnstructuredCreator(), typer, nil, gv, nil, "widgets")
}

func (customSerializer) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}

// customConvertor supports one version, so it never converts.
type customConvertor struct{}

func (customConvertor) Convert(in, out, _ any) error { return fmt.Errorf("convert %T to %T", in, out) }

func (customConvertor) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (customConvertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "metadata.namespace":
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

func newWidget() runtime.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
	return u
}

func (w *world) widgets(t testing.TB) *resource {
	typer, creator := customTyper{unstructuredscheme.NewUnstructuredObjectTyper()}, unstructuredscheme.NewUnstructuredCreator()
	plain := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, creator, typer, jsonserializer.SerializerOptions{StreamingCollectionsEncoding: true})
	pretty := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, creator, typer, jsonserializer.SerializerOptions{Pretty: true})
	asProtobuf := protobuf.NewSerializer(creator, typer)
	types := []runtime.SerializerInfo{
		{MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true, Serializer: plain, PrettySerializer: pretty},
		{MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf", Serializer: asProtobuf},
	}
	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: meta.NewAccessor()},
		Serializer: customSerializer{types}, StandardSerializers: types[:1],
		Creater: creator, Convertor: customConvertor{}, UnsafeConvertor: customConvertor{}, Typer: typer,
		Resource: widgets, Kind: widgets.GroupVersion().WithKind("Widget"), HubGroupVersion: widgets.GroupVersion(), MetaGroupVersion: metav1.SchemeGroupVersion,
	}
	return w.add(t, kindConfig{
		gvr: widgets, kind: "Widget", namespaced: true, scope: scope,
		codec:   runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme),
		newFunc: newWidget,
		newList: func() runtime.Object {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(widgets.GroupVersion().WithKind("WidgetList"))
			return list
		},
	})
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
