package customresource

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	schemaobjectmeta "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// usual is the metadata of a stored object.
const usual = `{
	"name": "one", "namespace": "default", "uid": "0f3c", "resourceVersion": "17", "generation": 3,
	"creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z", "deletionGracePeriodSeconds": 0,
	"labels": {"app": "a", "empty": ""}, "annotations": {"note": "x"}, "finalizers": ["example.com/keep", ""],
	"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true, "blockOwnerDeletion": false}],
	"managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}, ".": {}}}, "subresource": "status"}]
}`

func decoded(t testing.TB, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := utiljson.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

// odd are replacements of any value: of the wrong type, malformed, or not canonical.
func odd(r *rand.Rand) any {
	values := []any{
		nil, "", "text", int64(0), int64(-7), 1.5, true, map[string]any{}, map[string]any{"a": nil}, map[string]any{"a": "b"}, map[string]any{"f:a": map[string]any{}}, []any{}, []any{nil}, []any{"x"}, []any{map[string]any{}},
		"2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05.5Z", "2026-13-02T03:04:05Z", "2026-01-02t03:04:05Z", "0001-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-02T24:00:00Z",
	}
	return values[r.IntN(len(values))]
}

// change makes a random change in a value: it replaces, removes or adds something.
func change(r *rand.Rand, value any) any {
	switch v := value.(type) {
	case map[string]any:
		keys := append([]string{"unknown", "name", "generation", "labels"}, slices.Sorted(maps.Keys(v))...)
		key := keys[r.IntN(len(keys))]
		switch below, ok := v[key]; {
		case !ok || r.IntN(4) == 0:
			v[key] = odd(r)
		case r.IntN(4) == 0:
			delete(v, key)
		default:
			v[key] = change(r, below)
		}
		return v
	case []any:
		if len(v) > 0 && r.IntN(3) > 0 {
			at := r.IntN(len(v))
			v[at] = change(r, v[at])
			return v
		}
	}
	return odd(r)
}

// Decoding and encoding well-formed metadata returns it unchanged, without an error and
// without unknown fields.
func TestWellFormedMetadataIsGivenBackAsItIs(t *testing.T) {
	if !wellFormed(decoded(t, usual)) {
		t.Error("the usual is not well-formed")
	}
	r := rand.New(rand.NewPCG(1, 2))
	agreed := 0
	for range 50_000 {
		metadata := decoded(t, usual)
		for range 1 + r.IntN(3) {
			change(r, metadata)
		}
		text, err := json.Marshal(metadata)
		if err != nil {
			t.Fatal(err)
		}
		known := wellFormed(metadata)
		read := reader{text: string(text)}
		if ok := read.metadata(&metadataFacts{}) && read.pos == len(text); ok != known {
			t.Fatalf("%s: well-formed as it is written %v, decoded %v", text, ok, known)
		}
		if !known {
			continue
		}
		agreed++
		object := map[string]any{"metadata": runtime.DeepCopyJSONValue(metadata)}
		meta, _, unknown, err := schemaobjectmeta.GetObjectMetaWithOptions(object, schemaobjectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
		if err != nil || len(unknown) > 0 {
			t.Fatalf("%s: unknown fields %v, error %v", text, unknown, err)
		}
		if err := schemaobjectmeta.SetObjectMeta(object, meta); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(any(metadata), object["metadata"]); diff != "" {
			t.Fatalf("%s (-well-formed +long way):\n%s", text, diff)
		}
	}
	if agreed < 1000 {
		t.Errorf("%d of 50,000 are well-formed: too few to say anything", agreed)
	}
}
