package openapi

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/server/openapi"
)

// recorder records the published sources by path.
type recorder struct {
	v2 openapi.Source
	v3 map[string]openapi.Source
}

func (r *recorder) SetV2(source openapi.Source)              { r.v2 = source }
func (r *recorder) SetV3(path string, source openapi.Source) { r.v3[path] = source }
func (r *recorder) DeleteV3(path string)                     { delete(r.v3, path) }

func static() openapi.Source {
	return openapi.Source{Build: func() ([]byte, error) {
		return []byte(`{"swagger":"2.0","info":{"title":"Kubernetes","version":"1"},"paths":{"/version":{}},"definitions":{}}`), nil
	}}
}

func definition(plural, kind string, generation int64, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com", UID: "1", Generation: generation},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind, ListKind: kind + "List"},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}},
		},
	}
	for _, name := range versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"size": {Type: "integer", Description: "how big it is", Default: &apiextensionsv1.JSON{Raw: []byte(`3`)}},
					}},
				},
			}},
		})
	}
	return crd
}

func TestPublisher(t *testing.T) {
	r := &recorder{v3: map[string]openapi.Source{}}
	p := NewPublisher(r, static())
	check := func(step string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(r.v3))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	pending := definition("widgets", "Widget", 1, "v1")
	pending.Status.Conditions = nil
	p.Put(pending)
	check("not established")

	p.Put(definition("widgets", "Widget", 1, "v1"))
	check("established", "apis/example.com/v1")
	first := r.v3["apis/example.com/v1"].Tag
	p.Put(definition("widgets", "Widget", 1, "v1"))
	if got := r.v3["apis/example.com/v1"].Tag; got != first {
		t.Error("the tag changes though the generation does not")
	}
	p.Put(definition("gadgets", "Gadget", 1, "v1"))
	check("two in one group-version", "apis/example.com/v1")
	if r.v3["apis/example.com/v1"].Tag == first {
		t.Error("the tag does not change with another CRD")
	}
	p.Put(definition("widgets", "Widget", 2, "v2"))
	check("another version instead", "apis/example.com/v1", "apis/example.com/v2")
	p.Remove(definition("gadgets", "Gadget", 1, "v1"))
	check("the last of a version removed", "apis/example.com/v2")
	own := definition("widgets", "Widget", 1, "v1")
	own.Name, own.Spec.Group = "widgets.apiextensions.k8s.io", "apiextensions.k8s.io"
	p.Put(own)
	check("a CRD must not replace the document of its own API", "apis/example.com/v2")
}

func TestDocuments(t *testing.T) {
	r := &recorder{v3: map[string]openapi.Source{}}
	p := NewPublisher(r, static())
	p.Put(definition("widgets", "Widget", 1, "v1", "v2"))
	p.Put(definition("gadgets", "Gadget", 1, "v1"))

	var v3 struct {
		Paths      map[string]any
		Components struct{ Schemas map[string]any }
	}
	build(t, r.v3["apis/example.com/v1"], &v3)
	for _, path := range []string{"/apis/example.com/v1/widgets", "/apis/example.com/v1/namespaces/{namespace}/gadgets/{name}"} {
		if v3.Paths[path] == nil {
			t.Errorf("v3: no path %s", path)
		}
	}
	for _, name := range []string{"com.example.v1.Widget", "com.example.v1.GadgetList", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"} {
		if v3.Components.Schemas[name] == nil {
			t.Errorf("v3: no schema %s", name)
		}
	}

	var v2 struct {
		Paths       map[string]any
		Definitions map[string]struct {
			Properties map[string]struct {
				Properties map[string]struct {
					Description string
					Default     any
				}
			}
		}
	}
	build(t, r.v2, &v2)
	for _, path := range []string{"/version", "/apis/example.com/v2/widgets", "/apis/example.com/v1/gadgets"} {
		if v2.Paths[path] == nil {
			t.Errorf("v2: no path %s", path)
		}
	}
	size := v2.Definitions["com.example.v2.Widget"].Properties["spec"].Properties["size"]
	if size.Description != "how big it is" || size.Default != nil {
		t.Errorf("v2: size is %+v, want a description and no default", size)
	}
}

func build(t *testing.T, source openapi.Source, into any) {
	t.Helper()
	document, err := source.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(document, into); err != nil {
		t.Fatal(err)
	}
}
