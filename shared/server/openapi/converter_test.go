package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
)

var gvAutoscaling = autoscalingv1.SchemeGroupVersion

// upstream returns the converter that kube-apiserver would build for the kinds.
func upstream(t testing.TB, kinds ...string) managedfields.TypeConverter {
	t.Helper()
	config := &common.OpenAPIV3Config{
		GetDefinitions:    generated.GetOpenAPIDefinitions,
		GetDefinitionName: apiopenapi.NewDefinitionNamer(scheme.Scheme).GetDefinitionName,
	}
	var names []string
	for _, kind := range kinds {
		sample, err := scheme.Scheme.New(gvAutoscaling.WithKind(kind))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, util.GetCanonicalTypeName(sample))
	}
	definitions, err := builder3.BuildOpenAPIDefinitionsForResources(config, names...)
	if err != nil {
		t.Fatal(err)
	}
	converter, err := managedfields.NewTypeConverter(definitions, false)
	if err != nil {
		t.Fatal(err)
	}
	return converter
}

func autoscaler(name string) *autoscalingv1.HorizontalPodAutoscaler {
	return &autoscalingv1.HorizontalPodAutoscaler{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", Labels: map[string]string{"a": "b"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "1"}},
		},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{Kind: "Deployment", Name: "web", APIVersion: "apps/v1"},
			MaxReplicas:    3,
		},
	}
}

// TestTypesEqualUpstreams: the type of a kind has the parts that
// builder3.BuildOpenAPIDefinitionsForResources gives it, and the parts are equal.
func TestTypesEqualUpstreams(t *testing.T) {
	served := newTier(t)
	for kind, object := range map[string]runtime.Object{
		"HorizontalPodAutoscaler": autoscaler("web"),
		"Scale":                   &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"}},
	} {
		t.Run(kind, func(t *testing.T) {
			want, err := upstream(t, kind).ObjectToTyped(object)
			if err != nil {
				t.Fatal(err)
			}
			got, err := served.TypeConverter(gvAutoscaling).ObjectToTyped(object)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parts(t, want.Schema()), parts(t, got.Schema())); diff != "" {
				t.Error(diff)
			}
			if got.TypeRef().NamedType == nil || *got.TypeRef().NamedType != *want.TypeRef().NamedType {
				t.Errorf("type %v, want %v", got.TypeRef(), want.TypeRef())
			}
		})
	}
}

// parts returns the parts of a schema by name, independent of the order of fields, which comes
// from a map.
func parts(t *testing.T, of *smd.Schema) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, part := range of.Types {
		if part.Map != nil {
			fields := slices.SortedFunc(slices.Values(part.Map.Fields), func(a, b smd.StructField) int { return strings.Compare(a.Name, b.Name) })
			part.Atom.Map = &smd.Map{Fields: fields, ElementType: part.Map.ElementType, ElementRelationship: part.Map.ElementRelationship}
		}
		encoded, err := json.Marshal(part.Atom)
		if err != nil {
			t.Fatal(err)
		}
		if all[part.Name] != "" {
			t.Errorf("part %s twice", part.Name)
		}
		all[part.Name] = string(encoded)
	}
	return all
}

// TestPartsAreShared: kinds share their common parts in memory.
func TestPartsAreShared(t *testing.T) {
	converter := newTier(t).TypeConverter(gvAutoscaling)
	meta := func(object runtime.Object) *smd.Map {
		value, err := converter.ObjectToTyped(object)
		if err != nil {
			t.Fatal(err)
		}
		part, ok := value.Schema().FindNamedType(metav1.ObjectMeta{}.OpenAPIModelName())
		if !ok {
			t.Fatal("no ObjectMeta")
		}
		return part.Map
	}
	scale := &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"}}
	if meta(autoscaler("web")) != meta(scale) {
		t.Error("ObjectMeta is there twice")
	}
}

// TestUnknownKinds: for an unknown kind, a converter returns the same error as
// kube-apiserver's, so that field managers drop entries of unknown versions instead of failing.
func TestUnknownKinds(t *testing.T) {
	served := newTier(t)
	_, want := upstream(t, "Scale").ObjectToTyped(&corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}})
	for name, test := range map[string]struct {
		of      schema.GroupVersion
		version string
		kind    string
		known   bool
	}{
		"served":                              {gvAutoscaling, "autoscaling/v1", "HorizontalPodAutoscaler", true},
		"served, from another group":          {schema.GroupVersion{Group: "apps", Version: "v1"}, "autoscaling/v1", "HorizontalPodAutoscaler", true},
		"served, but not by core":             {schema.GroupVersion{Version: "v1"}, "autoscaling/v1", "HorizontalPodAutoscaler", false},
		"in the scheme, but not in the table": {gvAutoscaling, "autoscaling/v2", "HorizontalPodAutoscaler", false},
		"not in the scheme":                   {gvAutoscaling, "autoscaling/v9", "HorizontalPodAutoscaler", false},
		"no kind at all":                      {gvAutoscaling, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{}}
			object.SetAPIVersion(test.version)
			object.SetKind(test.kind)
			_, err := served.TypeConverter(test.of).ObjectToTyped(object)
			if (err == nil) != test.known {
				t.Fatalf("known %t, error %v", err == nil, err)
			}
			if !test.known && reflect.TypeOf(err) != reflect.TypeOf(want) {
				t.Errorf("error of type %T, want %T", err, want)
			}
		})
	}
}

// TestMissingDefinition: the error for a kind without a definition names the kind.
func TestMissingDefinition(t *testing.T) {
	served := newTier(t)
	served.definitions.generate = func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil }
	_, err := served.TypeConverter(gvAutoscaling).ObjectToTyped(autoscaler("web"))
	if err == nil || !strings.Contains(err.Error(), "HorizontalPodAutoscaler") {
		t.Errorf("error %v", err)
	}
}

// TestFirstUseByMany: concurrent first writes of a kind generate the definitions once and share
// one type, because values of different types do not merge.
func TestFirstUseByMany(t *testing.T) {
	served := newTier(t)
	var mu sync.Mutex
	schemas := map[*smd.Schema]bool{}
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			value, err := served.TypeConverter(gvAutoscaling).ObjectToTyped(autoscaler(fmt.Sprint("web-", i)))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			schemas[value.Schema()] = true
		})
	}
	group.Wait()
	if len(schemas) != 1 || *served.made != 1 {
		t.Errorf("%d types, definitions made %d times", len(schemas), *served.made)
	}
}

// TestManagedFields: a field manager records the same with this converter as with
// kube-apiserver's (KEP-555), for a create, an apply by another manager, and a conflict.
func TestManagedFields(t *testing.T) {
	ours, conflict := managed(t, newTier(t).TypeConverter(gvAutoscaling))
	theirs, theirConflict := managed(t, upstream(t, "HorizontalPodAutoscaler"))
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Error(diff)
	}
	if conflict == "" || conflict != theirConflict {
		t.Errorf("conflict %q, want %q", conflict, theirConflict)
	}
	owned := fmt.Sprint(ours)
	for _, want := range []string{"f:maxReplicas", "f:minReplicas", "k:{", "applier", "creator"} {
		if !strings.Contains(owned, want) {
			t.Errorf("the test does not reach %s: %s", want, owned)
		}
	}
}

// managed returns the managed fields after a create and an apply, and the error of a
// conflicting apply.
func managed(t *testing.T, converter managedfields.TypeConverter) (entries []string, conflict string) {
	t.Helper()
	kind := gvAutoscaling.WithKind("HorizontalPodAutoscaler")
	manager, err := managedfields.NewDefaultFieldManager(converter, runtime.UnsafeObjectConvertor(scheme.Scheme),
		scheme.Scheme, scheme.Scheme, kind, gvAutoscaling, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	live, err := manager.Update(&autoscalingv1.HorizontalPodAutoscaler{}, autoscaler("web"), "creator")
	if err != nil {
		t.Fatal(err)
	}
	apply := func(field string, value int64) (runtime.Object, error) {
		applied := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{field: value}}}
		applied.SetGroupVersionKind(kind)
		applied.SetName("web")
		applied.SetNamespace("default")
		return manager.Apply(live, applied, "applier", false)
	}
	if live, err = apply("minReplicas", 2); err != nil {
		t.Fatal(err)
	}
	for _, entry := range live.(metav1.Object).GetManagedFields() {
		entries = append(entries, fmt.Sprint(entry.Manager, entry.Operation, entry.APIVersion, string(entry.FieldsV1.Raw)))
	}
	if _, err = apply("maxReplicas", 9); err != nil {
		conflict = err.Error()
	}
	return entries, conflict
}

// TestObjectOfTyped: the typed form of a Go object equals upstream's, value by value, and
// returns the object itself; a value produced by structured merge does not.
func TestObjectOfTyped(t *testing.T) {
	converter, reference := newTier(t).TypeConverter(gvAutoscaling), upstream(t, "HorizontalPodAutoscaler")
	object := autoscaler("web")
	ours, err := converter.ObjectToTyped(object)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := reference.ObjectToTyped(object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(theirs.AsValue().Unstructured(), ours.AsValue().Unstructured()); diff != "" {
		t.Error(diff)
	}
	if back, err := converter.TypedToObject(ours); err != nil || back != runtime.Object(object) {
		t.Errorf("%v, %v, want the object that it was made of", back, err)
	}
	want, err := reference.TypedToObject(theirs)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := ours.Merge(ours)
	if err != nil {
		t.Fatal(err)
	}
	back, err := converter.TypedToObject(merged)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, back); diff != "" {
		t.Error(diff)
	}
	twice := autoscaler("web")
	twice.OwnerReferences = append(twice.OwnerReferences, twice.OwnerReferences[0])
	_, wanted := reference.ObjectToTyped(twice)
	if _, err := converter.ObjectToTyped(twice); err == nil || wanted == nil || err.Error() != wanted.Error() {
		t.Errorf("two owners with one uid: %v, want %v", err, wanted)
	}
}

// BenchmarkFirstWrite measures the additional cost of the first write of a kind.
//
//	go test -run '^$' -bench FirstWrite ./shared/server/openapi
func BenchmarkFirstWrite(b *testing.B) {
	b.Run("first of all kinds", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			converter := newTier(b).TypeConverter(gvAutoscaling)
			b.StartTimer()
			if _, err := converter.ObjectToTyped(autoscaler("web")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("second kind", func(b *testing.B) {
		b.ReportAllocs()
		scale := &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"}}
		for b.Loop() {
			b.StopTimer()
			converter := newTier(b).TypeConverter(gvAutoscaling)
			if _, err := converter.ObjectToTyped(autoscaler("web")); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if _, err := converter.ObjectToTyped(scale); err != nil {
				b.Fatal(err)
			}
		}
	})
}
