package render

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/storage/bytecache"
)

// TestSplicedEqualsRendered checks that spliced objects equal rendered ones, at sizes where
// lengths within a message grow by a byte, and that only a mark is cached.
func TestSplicedEqualsRendered(t *testing.T) {
	budget := bytecache.NewBudget(1 << 30)
	built, codec := configMaps(t, budget)
	custom, customCodec := widgets(t, budget)
	for _, revision := range []int64{1, 99, 100, 123456789, 1<<62 + 1} {
		for size := range 300 {
			before := budget.Used()
			check(t, built, entry(t, codec, configMap("a", size*60), revision), Protobuf)
			m := configMap("a", 3)
			m.Annotations = map[string]string{"x": strings.Repeat("y", size)}
			check(t, built, entry(t, codec, m, revision), Protobuf)
			u := customObject(map[string]any{"data": "resourceVersion", "spec": map[string]any{"size": strings.Repeat("z", size)}})
			check(t, custom, entry(t, customCodec, u, revision), JSON)
			if grown := budget.Used() - before; grown > 3*200 {
				t.Fatalf("%d bytes are cached for objects that are sent as stored", grown)
			}
		}
	}
	before := budget.Used()
	check(t, built, entry(t, codec, configMap("defaulted", 5000), 7), Protobuf)
	check(t, built, entry(t, codec, configMap("a", 5000), 7), JSON)
	if grown := budget.Used() - before; grown < 5000 {
		t.Errorf("%d bytes are cached for objects that are not sent as stored", grown)
	}
	// Stored by hand, and so not as a server would store it.
	check(t, custom, bytecache.NewEntry("", 3, []byte(`{"kind":"Widget", "apiVersion":"example.com/v1","metadata":{"uid":"u","name":"n"}}`)), JSON)
	check(t, custom, bytecache.NewEntry("", 3, []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n"}}`)), JSON)
	check(t, custom, bytecache.NewEntry("", 3, []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n","resourceVersion":"","uid":"u"}}`)), JSON)
}

// check compares all encodings of an entry with the rendered ones.
func check(t *testing.T, v *Version, e *bytecache.Entry, f Format) {
	t.Helper()
	want, err := v.Render(e, f, e.Revision)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := v.AppendObject([]byte("before"), e, f)
		if err != nil || string(got) != "before"+string(want) {
			t.Fatalf("object at %d: %v\n%q\nwant\n%q", e.Revision, err, got, want)
		}
		item, err := v.AppendItem([]byte("before"), e, f)
		if err != nil || !bytes.Contains(want, bytes.TrimPrefix(item, []byte("before"))) {
			t.Fatalf("item at %d: %v\n%q\nis not in\n%q", e.Revision, err, item, want)
		}
		if size, err := v.ItemSize(e, f); err != nil || size != len(item)-len("before") {
			t.Fatalf("item at %d has %d bytes, not %d: %v", e.Revision, len(item)-len("before"), size, err)
		}
	}
}

// TestRenderWithDeletionRevision checks that an entry can be rendered with the revision of
// its deletion.
func TestRenderWithDeletionRevision(t *testing.T) {
	v, codec := configMaps(t, bytecache.NewBudget(1<<20))
	e := entry(t, codec, configMap("a", 1), 0)
	for _, f := range []Format{JSON, Protobuf, MetadataJSON, MetadataProtobuf, MetadataBetaJSON, MetadataBetaProtobuf} {
		data, err := v.Render(e, f, 4711)
		if err != nil || !bytes.Contains(data, []byte("4711")) {
			t.Errorf("format %d: %q, %v", f, data, err)
		}
	}
}

// TestMetadataIsCutFromCachedJSON checks that metadata is cut from the JSON of an object if
// that is cached.
func TestMetadataIsCutFromCachedJSON(t *testing.T) {
	v, codec := configMaps(t, bytecache.NewBudget(1<<20))
	m := configMap("a", 20)
	m.UID, m.Annotations = "u", map[string]string{"a": "} \" {\\", "<b>": "\u2028é"}
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{}}`)}}}
	e := entry(t, codec, m, 7)
	if _, ok := v.partialOfJSON(e, metav1.SchemeGroupVersion); ok {
		t.Fatal("metadata is cut from JSON that is not cached")
	}
	if _, err := v.AppendObject(nil, e, JSON); err != nil {
		t.Fatal(err)
	}
	for _, f := range []Format{MetadataJSON, MetadataBetaJSON} {
		gv, _ := f.metadata()
		want, err := v.Render(e, f, 7)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := v.partialOfJSON(e, gv); !ok || !bytes.Equal(got, want) {
			t.Errorf("%t: metadata\n%s\nwant\n%s", ok, got, want)
		}
		check(t, v, e, f)
	}
}

// provingCodec is a Prover that recognizes everything.
type provingCodec struct {
	runtime.Codec
	calls, decoded *int
}

func (p provingCodec) Identical([]byte) bool { *p.calls++; return true }

func (p provingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	*p.decoded++
	return p.Codec.Decode(data, defaults, into)
}

// Objects that a Prover recognizes are proved once and never decoded, unless they have no
// splice point or no resourceVersion.
func TestProverAvoidsDecoding(t *testing.T) {
	budget := bytecache.NewBudget(1 << 20)
	long, codec := widgets(t, budget)
	config := long.config
	var asked, decoded int
	config.Codec = provingCodec{codec, &asked, &decoded}
	quick, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		stored         string
		revision       int64
		calls, decoded int
	}{
		{"usual", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n","uid":"u"}}` + "\n", 7, 1, 0},
		{"nothing after the resourceVersion", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n"}}` + "\n", 7, 1, 1},
		{"a resourceVersion", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"resourceVersion":"1","uid":"u"}}` + "\n", 7, 1, 1},
		{"at no revision", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n","uid":"u"}}` + "\n", 0, 0, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			asked, decoded = 0, 0
			e := bytecache.NewEntry("/registry/x/n", test.revision, []byte(test.stored))
			want, err := long.Render(e, JSON, test.revision)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				got, err := quick.AppendObject(nil, e, JSON)
				if diff := cmp.Diff(string(want), string(got)); diff != "" || err != nil {
					t.Errorf("%v, sent (-want +got):\n%s", err, diff)
				}
			}
			if asked != test.calls || decoded != test.decoded {
				t.Errorf("asked %d times and decoded %d times, want %d and %d", asked, decoded, test.calls, test.decoded)
			}
			if _, err := quick.Render(bytecache.NewEntry("", 1, nil), JSON, 2); err == nil {
				t.Error("nothing is sent as an object")
			}
			unreadable := bytecache.NewEntry("", 1, nil)
			unreadable.Err = io.ErrUnexpectedEOF
			if _, err := quick.Render(unreadable, JSON, 2); !errors.Is(err, unreadable.Err) {
				t.Errorf("error %v, want that of the entry", err)
			}
			deleted, err := quick.Render(e, JSON, 1234)
			if err != nil {
				t.Fatal(err)
			}
			if want, err = long.Render(e, JSON, 1234); err != nil || !bytes.Equal(deleted, want) {
				t.Errorf("deleted (-want +got), %v:\n%s", err, cmp.Diff(string(want), string(deleted)))
			}
		})
	}
}
