package merged

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const base = `{
	"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1"},
	"paths": {
		"/apis/a/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Foo"}}},
			"parameters": [{"$ref": "#/parameters/limit"}]}},
		"/version/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Info"}}}}}
	},
	"definitions": {
		"Foo": {"type": "object", "properties": {"meta": {"$ref": "#/definitions/Meta"}}},
		"Meta": {"type": "object", "description": "a <b> & c", "default": {}},
		"Info": {"type": "object", "properties": {"major": {"type": "string"}}},
		"DeleteOptions": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "a", "kind": "DeleteOptions", "version": "v1"}]}
	},
	"parameters": {"limit": {"name": "limit", "in": "query", "type": "integer", "uniqueItems": true}}
}`

// TestSpliceEqualsKubeOpenAPI compares the result with that of kube-openapi's merge, which
// kube-aggregator uses.
func TestSpliceEqualsKubeOpenAPI(t *testing.T) {
	tests := []struct{ name, other string }{
		{"nothing in common", `{"swagger": "2.0", "info": {"title": "x", "version": "0"},
			"paths": {"/apis/b/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Bar"}}}}}},
			"definitions": {"Bar": {"type": "string"}}}`},
		{"no paths means nothing", `{"swagger": "2.0", "info": {"title": "x", "version": "0"}, "paths": {},
			"definitions": {"Bar": {"type": "string"}}}`},
		{"an equal definition is shared", `{"swagger": "2.0", "info": {"title": "x", "version": "0"},
			"paths": {"/apis/b/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Meta"}}}}}},
			"definitions": {"Meta": {"default": {}, "description": "a <b> & c", "type": "object"}}}`},
		{"a path of both stays the first one's, with what only it needs", `{"swagger": "2.0", "info": {"title": "x", "version": "0"},
			"paths": {
				"/version/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/TheirInfo"}}}}},
				"/apis/b/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Bar"}}}}}},
			"definitions": {"Bar": {"type": "string"}, "TheirInfo": {"type": "object", "properties": {"n": {"$ref": "#/definitions/Nested"}}},
				"Nested": {"type": "number"}, "Unused": {"type": "boolean"}}}`},
		{"a different definition is renamed with its references", `{"swagger": "2.0", "info": {"title": "x", "version": "0"},
			"paths": {"/apis/b/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Foo"}}}}}},
			"definitions": {"Foo": {"type": "object", "properties": {"self": {"$ref": "#/definitions/Foo"}, "meta": {"$ref": "#/definitions/Meta"}}},
				"Meta": {"type": "object", "description": "other"}}}`},
		{"a different parameter is renamed with its references", `{"swagger": "2.0", "info": {"title": "x", "version": "0"},
			"paths": {"/apis/b/v1/": {"get": {"responses": {"200": {"description": "OK"}}, "parameters": [{"$ref": "#/parameters/limit"}]}}},
			"parameters": {"limit": {"name": "limit", "in": "query", "type": "string"}}}`},
		{"definitions that differ in kinds alone become one", `{"swagger": "2.0", "info": {"title": "x", "version": "0"},
			"paths": {"/apis/b/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/DeleteOptions"}}}}}},
			"definitions": {"DeleteOptions": {"type": "object", "x-kubernetes-group-version-kind": [
				{"group": "b", "kind": "DeleteOptions", "version": "v1"}, {"group": "", "kind": "DeleteOptions", "version": "v1"}]}}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var want, other spec.Swagger
			decodeInto(t, base, &want)
			decodeInto(t, test.other, &other)
			if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&want, &other); err != nil {
				t.Fatal(err)
			}
			wanted, err := want.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}

			got := parse(t, base)
			if err := got.Splice(parse(t, test.other)); err != nil {
				t.Fatal(err)
			}
			merged, err := got.JSON()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(generic(t, wanted), generic(t, merged)); diff != "" {
				t.Errorf("(-kube-openapi +ours)\n%s", diff)
			}
		})
	}
}

// TestThirdSpliceReusesNames: a renamed definition is found again. Two extension servers built
// with the same older library share one definition.
func TestThirdSpliceReusesNames(t *testing.T) {
	other := func(path string) string {
		return `{"swagger": "2.0", "paths": {"` + path + `": {"$ref": "#/definitions/Meta"}}, "definitions": {"Meta": {"type": "string"}}}`
	}
	s := parse(t, base)
	for _, path := range []string{"/apis/b/v1/", "/apis/c/v1/"} {
		if err := s.Splice(parse(t, other(path))); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/apis/b/v1/", "/apis/c/v1/"} {
		if got, want := string(s.paths[path]), `{"$ref": "#/definitions/Meta_v2"}`; got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	if _, ok := s.sections["definitions"]["Meta_v3"]; ok {
		t.Error("an equal definition was renamed twice")
	}
}

func TestKeepEqualsKubeOpenAPI(t *testing.T) {
	var want spec.Swagger
	decodeInto(t, base, &want)
	aggregator.FilterSpecByPaths(&want, []string{"/apis/a/v1/"})
	wanted, err := want.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	s := parse(t, base)
	s.Keep([]string{"/apis/a/v1/"})
	got, err := s.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(generic(t, wanted), generic(t, got)); diff != "" {
		t.Errorf("(-kube-openapi +ours)\n%s", diff)
	}
}

func TestParseSpecRefuses(t *testing.T) {
	for name, document := range map[string]string{
		"not JSON":                    `<html>`,
		"a list":                      `[]`,
		"paths of a wrong type":       `{"paths": 1}`,
		"definitions of a wrong type": `{"definitions": "x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseSpec([]byte(document)); err == nil {
				t.Error("got no error")
			}
		})
	}
}

func TestEscapedSlashesInReferences(t *testing.T) {
	s := parse(t, `{"paths": {"\/a": {"$ref": "#\/definitions\/Foo"}}, "definitions": {"Foo": {"type": "string"}, "Bar": {}}}`)
	if !s.reachable()["definitions/Foo"] {
		t.Errorf("got %v, want definitions/Foo", s.reachable())
	}
}

func parse(t *testing.T, document string) *Spec {
	t.Helper()
	s, err := ParseSpec([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func decodeInto(t *testing.T, document string, into *spec.Swagger) {
	t.Helper()
	if err := into.UnmarshalJSON([]byte(document)); err != nil {
		t.Fatal(err)
	}
}

func generic(t *testing.T, document []byte) map[string]any {
	t.Helper()
	var value map[string]any
	if err := json.Unmarshal(document, &value); err != nil {
		t.Fatal(err)
	}
	return value
}
