package compactcrd

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// definition returns a CRD with three versions: one has a schema of 20 kB, one a schema
// with an example, and one has no schema.
func definition(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range 60 {
		properties[fmt.Sprintf("setting%d", i)] = apiextensionsv1.JSONSchemaProps{
			Type: "object", Description: fmt.Sprintf("Setting %d of the thing, which says how the controller treats it.", i),
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"enabled": {Type: "boolean", Default: &apiextensionsv1.JSON{Raw: []byte(`true`)}},
				"mode":    {Type: "string", Enum: []apiextensionsv1.JSON{{Raw: []byte(`"Fast"`)}, {Raw: []byte(`"Safe"`)}}},
			},
		}
	}
	schema := func(props apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceValidation {
		return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "things.example.com", UID: "1", Generation: 3,
			Annotations:   map[string]string{"short": "one", "odd": "\x00two"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Schema: schema(apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties})},
				{Name: "v1beta1", Schema: schema(apiextensionsv1.JSONSchemaProps{Example: &apiextensionsv1.JSON{Raw: []byte(`"like this"`)}})},
				{Name: "v1alpha1"},
			},
		},
	}
	applied, err := json.Marshal(crd.Spec)
	if err != nil {
		t.Fatal(err)
	}
	crd.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = string(applied)
	return crd
}

// compacted returns the compact form of definition.
func compacted(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := definition(t)
	if _, err := Compact(crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

func TestCompactAndExpand(t *testing.T) {
	want := definition(t)
	want.ManagedFields = nil
	small := compacted(t)
	if size, full := small.Size(), want.Size(); size > full/8 {
		t.Errorf("a compact CRD has %d bytes of %d", size, full)
	}
	again, err := Compact(small.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(small, again); diff != "" {
		t.Errorf("compacted twice (-once +twice):\n%s", diff)
	}
	got, err := Expand(small)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("expanded (-want +got):\n%s", diff)
	}
	for i := range want.Spec.Versions {
		want.Spec.Versions[i].Schema = nil
	}
	if got, err = WithoutSchemas(small); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("without schemas (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(compacted(t), small); diff != "" {
		t.Errorf("the compact CRD has changed:\n%s", diff)
	}
}

// TestNotCompact checks that other objects are returned unchanged, including a CRD whose
// schema consists of an example, as that of a compact CRD does.
func TestNotCompact(t *testing.T) {
	crd := definition(t)
	crd.Spec.Versions = crd.Spec.Versions[1:]
	for _, do := range []func(*apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error){Expand, WithoutSchemas} {
		if got, err := do(crd); got != crd || err != nil {
			t.Errorf("got %p, want %p; %v", got, crd, err)
		}
	}
	if got, err := Compact("a tombstone"); got != "a tombstone" || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCorruptCompactCRD(t *testing.T) {
	crd := compacted(t)
	example := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Example
	example.Raw = example.Raw[:len(example.Raw)/2]
	if _, err := Expand(crd); err == nil || !strings.Contains(err.Error(), crd.Name) {
		t.Errorf("error %v, want one with the name", err)
	}
}

// recorder records the CRD of UpdateStatus and returns one with schemas.
type recorder struct {
	client.CustomResourceDefinitionInterface
	t      *testing.T
	status *apiextensionsv1.CustomResourceDefinition
}

func (s *recorder) CustomResourceDefinitions() client.CustomResourceDefinitionInterface { return s }

func (s *recorder) UpdateStatus(_ context.Context, crd *apiextensionsv1.CustomResourceDefinition, _ metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	s.status = crd
	return definition(s.t), nil
}

func TestClientSendsNoSchemas(t *testing.T) {
	s := &recorder{t: t}
	got, err := Client{s}.CustomResourceDefinitions().UpdateStatus(t.Context(), compacted(t), metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(compacted(t), got); diff != "" {
		t.Errorf("returned (-want +got):\n%s", diff)
	}
	want, err := WithoutSchemas(compacted(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.status); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}

func BenchmarkCompact(b *testing.B) {
	crd := definition(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compact(crd.DeepCopy()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExpand(b *testing.B) {
	crd := compacted(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Expand(crd); err != nil {
			b.Fatal(err)
		}
	}
}
