package render

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
)

// FuzzFields checks that for any stored bytes of a pod the selectable fields read from them
// are those of the decoded object.
func FuzzFields(f *testing.F) {
	fields := newFields(f, podFields)
	raw := func(stored []byte) []byte {
		var unknown runtime.Unknown
		if err := unknown.Unmarshal(stored[len(protobufMagic):]); err != nil {
			f.Fatal(err)
		}
		return unknown.Raw
	}
	f.Add(raw(storedPod(f, runningPod())), "/registry/pods/default/web-1")
	f.Add(raw(storedPod(f, runningPod(), 10<<3|wireBytes, 1, 'x')), "")
	f.Add(raw(storedPod(f, runningPod(), 11<<3, 1)), "web-1")
	f.Add([]byte{tagMetadata, 0, tagMetadata, 0}, "/")
	f.Fuzz(func(t *testing.T, raw []byte, key string) {
		whole, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		stored := slices.Concat(protobufMagic, whole)
		eachAlone(t, fields, stored)
		got, ok := fields.OfEntry(bytecache.NewEntry(key, 1, stored))
		pod, err := unmarshalPod(stored)
		if !ok || err != nil {
			return
		}
		if want, plain := fieldsOf(pod); !plain || !cmp.Equal(want, got) {
			t.Errorf("stored %q (-decoded +read):\n%s", stored, cmp.Diff(want, got))
		}
	})
}

// FuzzLabels checks that for any JSON a client sends for a custom resource, the labels read
// from its stored bytes, together or one by one, are those of the decoded object.
func FuzzLabels(f *testing.F) {
	_, codec := widgets(f, bytecache.NewBudget(1<<20))
	for _, text := range []string{
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n","labels":{"a":"b","c":""}}}`,
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"a\"":"\\","é":"\u2028"}},"a":{"labels":{"x":"y"}}}`,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"labels":null,"name":"\"labels\":{"}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"labels":{}},"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		obj, _, err := codec.Decode(sent, nil, nil)
		if err != nil {
			return
		}
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return
		}
		// Labels that are not strings are refused before the object is stored.
		if _, _, err := unstructured.NestedStringMap(u.Object, "metadata", "labels"); err != nil {
			return
		}
		e := entry(t, codec, u, 1)
		var l Labels
		labels, ok := l.Of(e.Data())
		if !ok {
			return
		}
		if diff := cmp.Diff(u.GetLabels(), labels, equateEmpty); diff != "" {
			t.Errorf("stored %q: labels (-decoded +read):\n%s", e.Data(), diff)
		}
		eachLabelAlone(t, e, labels)
	})
}
