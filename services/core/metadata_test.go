package core

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/apihelpers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

// TestMetadataFromBytes checks, for every built-in kind and stored version, that metadata
// and labels read from stored bytes equal those of the decoded object.
func TestMetadataFromBytes(t *testing.T) {
	scheme, codecs := legacyscheme.Scheme, legacyscheme.Codecs
	stored, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	sent, _ := runtime.SerializerInfoForMediaType(apihelpers.GetMetaInternalVersionCodecs().SupportedMediaTypes(), runtime.ContentTypeJSON)
	encoder := apihelpers.GetMetaInternalVersionCodecs().EncoderForVersion(sent.Serializer, metav1.SchemeGroupVersion)
	random := rand.New(rand.NewSource(1))
	fill := fuzzer.FuzzerFor(apitesting.FuzzerFuncs, random, codecs)
	const rounds = 100
	kinds := 0
	for _, gv := range scheme.PrioritizedVersionsAllGroups() {
		for _, kind := range slices.Sorted(maps.Keys(scheme.KnownTypes(gv))) {
			internal := schema.GroupVersionKind{Group: gv.Group, Version: runtime.APIVersionInternal, Kind: kind}
			if !scheme.Recognizes(internal) {
				continue
			}
			empty, err := scheme.New(internal)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := meta.Accessor(empty); err != nil {
				continue // no object that is stored
			}
			kinds++
			t.Run(fmt.Sprint(gv, " ", kind), func(t *testing.T) {
				codec := codecs.CodecForVersions(stored.Serializer, codecs.UniversalDeserializer(), gv, internal.GroupVersion())
				version, err := render.New(render.Config{
					Codec: codec, Serializer: codecs, Kind: gv.WithKind(kind), Budget: bytecache.NewBudget(1 << 20),
					Attributes: storage.DefaultNamespaceScopedAttr, New: func() runtime.Object { return empty.DeepCopyObject() }, NewList: func() runtime.Object { return &metav1.List{} },
				})
				if err != nil {
					t.Fatal(err)
				}
				for range rounds {
					obj := empty.DeepCopyObject()
					fill.Fill(obj)
					m, _ := meta.Accessor(obj)
					m.SetResourceVersion("")
					m.SetSelfLink("")
					if random.Intn(2) == 0 {
						m.SetLabels(nil)
					}
					data, err := runtime.Encode(codec, obj)
					if err != nil {
						continue // not every internal object can be stored in every version
					}
					e := bytecache.NewEntry("k", 7, data)
					whole, err := version.Decode(e, 7)
					if err != nil {
						t.Fatal(err)
					}
					of, _ := meta.Accessor(whole)
					partial := meta.AsPartialObjectMetadata(of)
					partial.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
					want, err := runtime.Encode(encoder, partial)
					if err != nil {
						t.Fatal(err)
					}
					got, err := version.Render(e, render.MetadataJSON, 7)
					if err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%v\n%s\nwant\n%s", err, got, want)
					}
					if _, err := version.AppendObject(nil, e, render.JSON); err != nil {
						t.Fatal(err)
					}
					// A part of the JSON of the whole, which is kept now.
					if got, err := version.AppendObject(nil, e, render.MetadataJSON); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%v, of the whole\n%s\nwant\n%s", err, got, want)
					}
					if labels, err := version.Labels(e); err != nil || !apiequality.Semantic.DeepEqual(labels, of.GetLabels()) {
						t.Fatalf("labels %v, %v, want %v", labels, err, of.GetLabels())
					}
				}
			})
		}
	}
	if kinds < 60 {
		t.Errorf("only %d kinds were compared", kinds)
	}
}
