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

// definition has a version with a schema of some 20 kB, one with an example in it and
// one without a schema.
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

// outlined is definition as an outline.
func outlined(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := definition(t)
	if _, err := Pack(crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

func TestPackAndWhole(t *testing.T) {
	want := definition(t)
	want.ManagedFields = nil
	small := outlined(t)
	if size, whole := small.Size(), want.Size(); size > whole/8 {
		t.Errorf("an outline has %d bytes of %d", size, whole)
	}
	again, err := Pack(small.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(small, again); diff != "" {
		t.Errorf("packed twice (-once +twice):\n%s", diff)
	}
	got, err := Whole(small)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("whole again (-want +got):\n%s", diff)
	}
	for i := range want.Spec.Versions {
		want.Spec.Versions[i].Schema = nil
	}
	if got, err = Bare(small); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bare (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(outlined(t), small); diff != "" {
		t.Errorf("the outline has changed:\n%s", diff)
	}
}

// What is no outline stays what it is: a schema that has an example and nothing else
// is none.
func TestWhatIsNoOutline(t *testing.T) {
	crd := definition(t)
	crd.Spec.Versions = crd.Spec.Versions[1:]
	for _, of := range []func(*apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error){Whole, Bare} {
		if got, err := of(crd); got != crd || err != nil {
			t.Errorf("got %p, want %p; %v", got, crd, err)
		}
	}
	if got, err := Pack("a tombstone"); got != "a tombstone" || err != nil {
		t.Errorf("packed %v, %v", got, err)
	}
}

func TestDamagedOutline(t *testing.T) {
	crd := outlined(t)
	example := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Example
	example.Raw = example.Raw[:len(example.Raw)/2]
	if _, err := Whole(crd); err == nil || !strings.Contains(err.Error(), crd.Name) {
		t.Errorf("error %v, want one with the name", err)
	}
}

// sent notes what a client is told to write and returns it with schemas.
type sent struct {
	client.CustomResourceDefinitionInterface
	t      *testing.T
	status *apiextensionsv1.CustomResourceDefinition
}

func (s *sent) CustomResourceDefinitions() client.CustomResourceDefinitionInterface { return s }

func (s *sent) UpdateStatus(_ context.Context, crd *apiextensionsv1.CustomResourceDefinition, _ metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	s.status = crd
	return definition(s.t), nil
}

func TestClientSendsNoOutline(t *testing.T) {
	s := &sent{t: t}
	got, err := Client{s}.CustomResourceDefinitions().UpdateStatus(t.Context(), outlined(t), metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outlined(t), got); diff != "" {
		t.Errorf("returned (-want +got):\n%s", diff)
	}
	want, err := Bare(outlined(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.status); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}

func BenchmarkPack(b *testing.B) {
	crd := definition(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Pack(crd.DeepCopy()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWhole(b *testing.B) {
	crd := outlined(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Whole(crd); err != nil {
			b.Fatal(err)
		}
	}
}
