package render

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
)

var widget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}

func configMaps(t testing.TB, budget *bytecache.Budget) (*Version, runtime.Codec) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	scheme.AddTypeDefaultingFunc(&corev1.ConfigMap{}, func(obj any) {
		if m := obj.(*corev1.ConfigMap); m.Name == "defaulted" {
			m.Data = map[string]string{"a": "default"}
		}
	})
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	codec := codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	v, err := New(Config{
		Codec: codec, New: func() runtime.Object { return &corev1.ConfigMap{} }, NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		Serializer: codecs, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Attributes: storage.DefaultNamespaceScopedAttr, Budget: budget,
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, codec
}

// unconvertedSerializer does not convert objects.
type unconvertedSerializer struct{ runtime.NegotiatedSerializer }

func (unconvertedSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	s := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, unstructuredscheme.NewUnstructuredCreator(),
		unstructuredscheme.NewUnstructuredObjectTyper(), jsonserializer.SerializerOptions{StreamingCollectionsEncoding: true})
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON, Serializer: s}}
}

func (unconvertedSerializer) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}

func widgets(t testing.TB, budget *bytecache.Budget) (*Version, runtime.Codec) {
	t.Helper()
	codec := runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme)
	empty := func() runtime.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(widget)
		return u
	}
	v, err := New(Config{
		Codec: codec, New: empty, Serializer: unconvertedSerializer{}, Kind: widget, Attributes: storage.DefaultNamespaceScopedAttr, Budget: budget,
		NewList: func() runtime.Object {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(widget.GroupVersion().WithKind("WidgetList"))
			return list
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, codec
}

func entry(t testing.TB, codec runtime.Codec, obj runtime.Object, revision int64) *bytecache.Entry {
	t.Helper()
	data, err := runtime.Encode(codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	return bytecache.NewEntry("/registry/x/ns/name", revision, data)
}

func configMap(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "1"}, Data: map[string]string{"a": strings.Repeat("x", size)}}
}

func customObject(content map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(widget)
	u.SetName("name")
	u.SetUID("1")
	return u
}
