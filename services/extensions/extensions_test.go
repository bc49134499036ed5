package extensions_test

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// widgetsCRD has one version with all features of a version.
//
//go:embed testdata/widgets.yaml
var widgetsCRD string

// versionedCRD has two served versions.
//
//go:embed testdata/versioned.yaml
var versionedCRD string

// blocked is added to schema errors if the schema also has rules.
const blocked = `<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`

const widget = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: %s}
spec: {color: green}
`

func named(name string) string { return strings.Replace(widget, "%s", name, 1) }

func nested(t *testing.T, u *unstructured.Unstructured, path string) any {
	t.Helper()
	value, _, err := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return value
}

// One object goes through all verbs, with the behavior of the API conventions.
func TestObjects(t *testing.T) {
	f := newFixture(t)
	f.define(t, widgetsCRD)
	_, path := widgetsIn("default")

	created := f.do(t, http.MethodPost, path, `
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, labels: {tier: a}, unknownMeta: x}
spec:
  note: null
  unknown: gone
  ports: [{name: http, port: 80, extra: gone}]
  free: {any: thing}
  template: {apiVersion: v1, kind: Pod, metadata: {name: p, bad: gone}, data: kept}
status: {phase: Ready}
`).want(t, http.StatusCreated).object(t)
	want := map[string]any{
		"color": "red", "replicas": int64(1), "limit": int64(10), "note": nil,
		"ports":    []any{map[string]any{"name": "http", "port": int64(80)}},
		"free":     map[string]any{"any": "thing"},
		"template": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p"}, "data": "kept"},
	}
	if diff := cmp.Diff(want, created.Object["spec"]); diff != "" {
		t.Errorf("spec, pruned and defaulted (-want +got):\n%s", diff)
	}
	if created.Object["status"] != nil {
		t.Errorf("a create sets status: %v", created.Object["status"])
	}
	if created.GetGeneration() != 1 || created.GetUID() == "" {
		t.Errorf("metadata %v", created.Object["metadata"])
	}

	t.Run("update bumps the generation, a label does not", func(t *testing.T) {
		u := f.do(t, http.MethodGet, path+"/one", "").want(t, http.StatusOK).object(t)
		u.SetLabels(map[string]string{"tier": "b"})
		u = f.update(t, path+"/one", u)
		if u.GetGeneration() != 1 {
			t.Errorf("generation %d after a change of labels", u.GetGeneration())
		}
		_ = unstructured.SetNestedField(u.Object, int64(3), "spec", "replicas")
		_ = unstructured.SetNestedField(u.Object, "Ready", "status", "phase")
		u = f.update(t, path+"/one", u)
		if u.GetGeneration() != 2 || nested(t, u, "status") != nil {
			t.Errorf("generation %d, status %v after a change of spec", u.GetGeneration(), nested(t, u, "status"))
		}
	})
	t.Run("status changes nothing else", func(t *testing.T) {
		u := f.do(t, http.MethodPatch, path+"/one/status", `{"spec":{"replicas":9},"metadata":{"labels":{"x":"y"}},"status":{"phase":"Pending","selector":"tier=b"}}`).
			want(t, http.StatusOK).object(t)
		if nested(t, u, "status.phase") != "Pending" || nested(t, u, "spec.replicas") != int64(3) || u.GetLabels()["x"] != "" || u.GetGeneration() != 2 {
			t.Errorf("after a write to status: %v", u.Object)
		}
		s := f.do(t, http.MethodPatch, path+"/one/status", `{"status":{"phase":"Lost"}}`).want(t, http.StatusUnprocessableEntity).status(t)
		if want := `Widget.example.com "one" is invalid: [status.phase: Unsupported value: "Lost": supported values: "Ready", "Pending", ` + blocked + `]`; s.Message != want {
			t.Errorf("message %q, want %q", s.Message, want)
		}
	})
	t.Run("scale", func(t *testing.T) {
		s := f.do(t, http.MethodGet, path+"/one/scale", "").want(t, http.StatusOK).object(t)
		if s.GetKind() != "Scale" || s.GetAPIVersion() != "autoscaling/v1" || nested(t, s, "spec.replicas") != int64(3) || nested(t, s, "status.selector") != "tier=b" {
			t.Errorf("scale %v", s.Object)
		}
		f.do(t, http.MethodPatch, path+"/one/scale", `{"spec":{"replicas":5}}`).want(t, http.StatusOK)
		u := f.do(t, http.MethodGet, path+"/one", "").want(t, http.StatusOK).object(t)
		if nested(t, u, "spec.replicas") != int64(5) || u.GetGeneration() != 3 {
			t.Errorf("after scaling: %v", u.Object)
		}
		var owners []string
		for _, m := range u.GetManagedFields() {
			if m.Subresource == "scale" {
				owners = append(owners, m.APIVersion+" "+string(m.FieldsV1.Raw))
			}
		}
		if diff := cmp.Diff([]string{`example.com/v1 {"f:spec":{"f:replicas":{}}}`}, owners); diff != "" {
			t.Errorf("managed fields of the scale (-want +got):\n%s", diff)
		}
		f.do(t, http.MethodPatch, path+"/one/scale", `{"spec":{"replicas":11}}`).want(t, http.StatusUnprocessableEntity)
	})
	t.Run("a patch of every type", func(t *testing.T) {
		f.do(t, http.MethodPatch, path+"/one", `[{"op":"replace","path":"/spec/limit","value":20}]`, "Content-Type: application/json-patch+json").want(t, http.StatusOK)
		f.do(t, http.MethodPatch, path+"/one", `{"spec":{"note":"short"}}`, "Content-Type: application/merge-patch+json").want(t, http.StatusOK)
		s := f.do(t, http.MethodPatch, path+"/one", `{"spec":{"note":"short"}}`, "Content-Type: application/strategic-merge-patch+json").
			want(t, http.StatusUnsupportedMediaType).status(t)
		if want := "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"; s.Message != want {
			t.Errorf("message %q, want %q", s.Message, want)
		}
	})
	t.Run("a stale resourceVersion conflicts", func(t *testing.T) {
		created.SetManagedFields(nil)
		raw, _ := json.Marshal(created)
		s := f.do(t, http.MethodPut, path+"/one", string(raw)).want(t, http.StatusConflict).status(t)
		if want := `Operation cannot be fulfilled on widgets.example.com "one": the object has been modified; please apply your changes to the latest version and try again`; s.Message != want {
			t.Errorf("message %q, want %q", s.Message, want)
		}
	})
	t.Run("dry run writes nothing", func(t *testing.T) {
		f.do(t, http.MethodPost, path+"?dryRun=All", named("dry")).want(t, http.StatusCreated)
		f.do(t, http.MethodGet, path+"/dry", "").want(t, http.StatusNotFound)
	})
	t.Run("delete", func(t *testing.T) {
		f.do(t, http.MethodDelete, path+"/one", `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"other"}}`).want(t, http.StatusConflict)
		s := f.do(t, http.MethodDelete, path+"/one", "").want(t, http.StatusOK).status(t)
		if s.Details == nil || s.Details.UID != created.GetUID() || s.Details.Kind != "widgets" {
			t.Errorf("status %+v", s)
		}
		s = f.do(t, http.MethodGet, path+"/one", "").want(t, http.StatusNotFound).status(t)
		if want := `widgets.example.com "one" not found`; s.Message != want {
			t.Errorf("message %q, want %q", s.Message, want)
		}
	})
	t.Run("delete a collection", func(t *testing.T) {
		for _, name := range []string{"a", "b", "c"} {
			f.do(t, http.MethodPost, path, named(name)).want(t, http.StatusCreated)
		}
		f.do(t, http.MethodDelete, path+"?fieldSelector=metadata.name%21%3Db", "").want(t, http.StatusOK)
		list := f.do(t, http.MethodGet, path, "").want(t, http.StatusOK).object(t)
		items := nested(t, list, "items").([]any)
		if len(items) != 1 || list.GetKind() != "WidgetList" {
			t.Errorf("after the delete: %v", list.Object)
		}
	})
	t.Run("generateName", func(t *testing.T) {
		u := f.do(t, http.MethodPost, path, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generateName":"gen-"},"spec":{}}`).want(t, http.StatusCreated).object(t)
		if len(u.GetName()) != len("gen-")+5 {
			t.Errorf("name %q", u.GetName())
		}
	})
}

// update replaces an object and returns the response.
func (f *fixture) update(t *testing.T, path string, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	raw, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	return f.do(t, http.MethodPut, path, string(raw)).want(t, http.StatusOK).object(t)
}

// Storage is byte-compatible with kube-apiserver's: keys, versions, encoding.
func TestStoredForm(t *testing.T) {
	f := newFixture(t)
	f.define(t, widgetsCRD)
	_, path := widgetsIn("default")
	f.do(t, http.MethodPost, path, named("one")).want(t, http.StatusCreated)

	var crd, object metav1.PartialObjectMetadata
	if err := json.Unmarshal([]byte(f.stored(t, "apiextensions.k8s.io/customresourcedefinitions/widgets.example.com")), &crd); err != nil {
		t.Fatalf("stored CRD: %v", err)
	}
	if crd.APIVersion != "apiextensions.k8s.io/v1beta1" {
		t.Errorf("CRDs are stored as %s", crd.APIVersion)
	}
	raw := f.stored(t, "example.com/widgets/default/one")
	if err := json.Unmarshal([]byte(raw), &object); err != nil {
		t.Fatalf("stored object: %v", err)
	}
	if object.APIVersion != "example.com/v1" || object.ResourceVersion != "" || !strings.HasSuffix(raw, "}\n") {
		t.Errorf("objects are stored as %q", raw)
	}
}
