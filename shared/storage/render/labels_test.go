package render

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/storage/bytecache"
)

// TestLabelsAllocateNothing checks that neither reading one label nor filtering all of them
// allocates.
func TestLabelsAllocateNothing(t *testing.T) {
	budget := bytecache.NewBudget(1 << 20)
	_, codec := configMaps(t, budget)
	_, customCodec := widgets(t, budget)
	m, u := configMap("a", 10), customObject(nil)
	m.Labels = map[string]string{"app": "x", "tier": "back"}
	u.SetLabels(m.Labels)
	for _, e := range []*bytecache.Entry{entry(t, codec, m, 7), entry(t, customCodec, u, 7)} {
		var l Labels
		if got := testing.AllocsPerRun(100, func() { sinkValue, _, _ = l.ValueOfEntry(e, "app") }); got > 0 || sinkValue != "x" {
			t.Errorf("one label, %q, allocates %v times", sinkValue, got)
		}
		if got := testing.AllocsPerRun(100, func() { _, _ = l.Filter(e.Data()) }); got > 0 {
			t.Errorf("a filter allocates %v times", got)
		}
	}
}

// TestLabelsEqualDecoded checks that the labels read from stored bytes are those of the
// decoded object.
func TestLabelsEqualDecoded(t *testing.T) {
	budget := bytecache.NewBudget(1 << 20)
	built, codec := configMaps(t, budget)
	custom, customCodec := widgets(t, budget)
	for name, labels := range map[string]map[string]string{
		"none": nil, "one": {"a": "b"}, "empty value": {"a": ""}, "many": {"a": "1", "b": "2", "c.d/e": "3"},
		"escaped": {"a": "<&>\"\\"}, "long": {strings.Repeat("k", 300): strings.Repeat("v", 300)}, "not ASCII": {"é": "ü\u2028"},
	} {
		t.Run(name, func(t *testing.T) {
			m := configMap("a", 10)
			m.Labels, m.Annotations = labels, map[string]string{"labels": "no", "a": "not this"}
			deletion, grace := metav1.Now(), int64(300)
			m.DeletionTimestamp, m.DeletionGracePeriodSeconds, m.Generation = &deletion, &grace, 1<<40
			u := customObject(map[string]any{"aaa": map[string]any{"labels": map[string]any{"x": "y"}}})
			u.SetLabels(labels)
			for kind, tc := range map[string]struct {
				v *Version
				e *bytecache.Entry
			}{"built-in": {built, entry(t, codec, m, 1)}, "custom": {custom, entry(t, customCodec, u, 1)}} {
				got, err := tc.v.Labels(tc.e)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(labels, got, equateEmpty); diff != "" {
					t.Errorf("%s (-decoded +read):\n%s", kind, diff)
				}
				eachLabelAlone(t, tc.e, labels)
				checkFilter(t, tc.e, labels)
			}
		})
	}
	var l Labels
	if _, _, known := l.ValueOfEntry(&bytecache.Entry{Key: "k", Err: errNoAttributes}, "a"); known {
		t.Error("the label of an entry without bytes is known")
	}
	malformed := bytecache.NewEntry("", 0, []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n","labels":{"a":1}}}`))
	if got, err := custom.Labels(malformed); err != nil || len(got) != 0 {
		t.Errorf("labels that are numbers: %v, %v; want none, as the decoded object has", got, err)
	}
}

// checkFilter checks the filter of an entry's labels. Custom resources have none.
func checkFilter(t *testing.T, e *bytecache.Entry, labels map[string]string) {
	t.Helper()
	var l Labels
	s, ok := l.Filter(e.Data())
	if builtIn := bytes.HasPrefix(e.Data(), protobufMagic); ok != builtIn {
		t.Fatalf("there is a filter: %t, want %t", ok, builtIn)
	}
	var want bytecache.LabelFilter
	for key, value := range labels {
		want.Add([]byte(key), []byte(value))
	}
	if ok && s != want {
		t.Errorf("the filter is %x, want %x", s, want)
	}
}

// eachLabelAlone compares the labels, read one by one, with those of the decoded object. It
// reports whether they could be read.
func eachLabelAlone(t *testing.T, e *bytecache.Entry, want map[string]string) (known bool) {
	t.Helper()
	var l Labels
	for _, name := range append(slices.Collect(maps.Keys(want)), "another") {
		value, has, ok := l.ValueOfEntry(e, name)
		if !ok {
			return false
		}
		if expected, labeled := want[name]; value != expected || has != labeled {
			t.Errorf("stored %q: label %q alone is %q, %t; want %q, %t", e.Data(), name, value, has, expected, labeled)
		}
	}
	return true
}

var equateEmpty = cmp.Transformer("empty", func(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
})
