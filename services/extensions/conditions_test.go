package extensions_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
	"triune.dev/shared/testing/tiertest"
)

// TestStatusWritesChangeOnlyStatus checks that the controllers, which see compact CRDs,
// change neither the spec nor annotations nor the managers of fields.
func TestStatusWritesChangeOnlyStatus(t *testing.T) {
	f := newFixture(t)
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict([]byte(widgetsCRD), &crd); err != nil {
		t.Fatal(err)
	}
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	applied := strings.Repeat("as it was applied ", 200)
	crd.Annotations = map[string]string{"example.com/applied": applied}
	body, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + crd.Name
	answer := f.do(t, http.MethodPatch, path+"?fieldManager=me&force=true", string(body), "Content-Type: application/apply-patch+yaml").want(t, http.StatusCreated)
	var created apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal([]byte(answer.body), &created); err != nil {
		t.Fatal(err)
	}
	established := f.established(t, crd.Name)
	if diff := cmp.Diff(created.Spec, established.Spec); diff != "" {
		t.Errorf("spec (-created +established):\n%s", diff)
	}
	if diff := cmp.Diff(created.Annotations, established.Annotations); diff != "" {
		t.Errorf("annotations (-created +established):\n%s", diff)
	}
	mine := func(crd *apiextensionsv1.CustomResourceDefinition) string {
		for _, entry := range crd.ManagedFields {
			if entry.Manager == "me" {
				return string(entry.FieldsV1.Raw)
			}
		}
		return ""
	}
	if before, after := mine(&created), mine(established); before == "" || before != after {
		t.Errorf("fields of the one who applied:\n%s\nthen\n%s", before, after)
	}
	for _, entry := range established.ManagedFields {
		if entry.Manager != "me" && (entry.Subresource != "status" || strings.Contains(string(entry.FieldsV1.Raw), `"f:spec"`)) {
			t.Errorf("manager %s of %q owns %s", entry.Manager, entry.Subresource, entry.FieldsV1.Raw)
		}
	}
}

// A CRD from before schemas had to be structural gets a condition, which is removed when its
// schema is corrected.
func TestNonStructuralSchemas(t *testing.T) {
	f := newFixture(t)
	f.define(t, widgetsCRD)
	const name = "olds.example.com"
	stored := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(f.stored(t, "apiextensions.k8s.io/customresourcedefinitions/widgets.example.com"), "widget", "old"), "Widget", "Old"), "WIDGET", "OLD")
	var crd map[string]any
	if err := json.Unmarshal([]byte(stored), &crd); err != nil {
		t.Fatal(err)
	}
	crd["metadata"].(map[string]any)["uid"] = "7"
	spec := crd["spec"].(map[string]any)
	delete(spec, "selectableFields")
	for _, v := range spec["versions"].([]any) {
		delete(v.(map[string]any), "schema")
		delete(v.(map[string]any), "selectableFields")
	}
	spec["validation"] = map[string]any{"openAPIV3Schema": map[string]any{"properties": map[string]any{"spec": map[string]any{"type": "object"}}}}
	body, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.etcd.Put(t.Context(), "/registry/apiextensions.k8s.io/customresourcedefinitions/"+name, string(body)); err != nil {
		t.Fatal(err)
	}
	condition := func() (*apiextensionsv1.CustomResourceDefinitionCondition, string) {
		got, err := f.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return nil, err.Error()
		}
		return apihelpers.FindCRDCondition(got, apiextensionsv1.NonStructuralSchema), fmt.Sprintf("%+v", got.Status)
	}
	tiertest.Eventually(t, "the schema is found to be not structural", func() (bool, string) {
		c, status := condition()
		return c != nil && c.Status == apiextensionsv1.ConditionTrue && strings.Contains(c.Message, "type"), status
	})
	f.change(t, name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Type = "object"
		}
	}, "the condition goes", func() bool {
		c, _ := condition()
		return c == nil
	})
}
