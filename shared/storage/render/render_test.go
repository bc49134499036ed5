package render

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
)

var widget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}

func configMaps(t testing.TB, budget *bytecache.Budget) (*Version, runtime.Codec) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	scheme.AddTypeDefaultingFunc(&corev1.ConfigMap{}, func(obj any) {
		if m := obj.(*corev1.ConfigMap); m.Name == "defaulted" {
			m.Data = map[string]string{"a": "default"}
		}
	})
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	codec := codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	v, err := New(Config{
		Codec: codec, New: func() runtime.Object { return &corev1.ConfigMap{} }, NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		Serializer: codecs, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Attributes: storage.DefaultNamespaceScopedAttr, Budget: budget,
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, codec
}

// unconvertedSerializer does not convert objects.
type unconvertedSerializer struct{ runtime.NegotiatedSerializer }

func (unconvertedSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	s := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, unstructuredscheme.NewUnstructuredCreator(),
		unstructuredscheme.NewUnstructuredObjectTyper(), jsonserializer.SerializerOptions{StreamingCollectionsEncoding: true})
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON, Serializer: s}}
}
func (unconvertedSerializer) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}

func widgets(t testing.TB, budget *bytecache.Budget) (*Version, runtime.Codec) {
	t.Helper()
	codec := runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme)
	empty := func() runtime.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(widget)
		return u
	}
	v, err := New(Config{
		Codec: codec, New: empty, Serializer: unconvertedSerializer{}, Kind: widget, Attributes: storage.DefaultNamespaceScopedAttr, Budget: budget,
		NewList: func() runtime.Object {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(widget.GroupVersion().WithKind("WidgetList"))
			return list
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, codec
}

func entry(t testing.TB, codec runtime.Codec, obj runtime.Object, revision int64) *bytecache.Entry {
	t.Helper()
	data, err := runtime.Encode(codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	return bytecache.NewEntry("/registry/x/ns/name", revision, data)
}

func configMap(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "1"}, Data: map[string]string{"a": strings.Repeat("x", size)}}
}

func customObject(content map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(widget)
	u.SetName("name")
	u.SetUID("1")
	return u
}

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

// oneEntry is an Origin with one object, and a Feed without events.
type oneEntry struct{ e *bytecache.Entry }

func (o oneEntry) List(context.Context, kv.Range) (kv.Page, error) {
	item := &kv.KeyValue{Key: []byte(o.e.Key), Value: o.e.Data(), ModRevision: o.e.Revision}
	return kv.Page{Revision: o.e.Revision, Count: 1, KVs: []*kv.KeyValue{item}}, nil
}

func (oneEntry) RequestProgress(context.Context) error { return nil }

func (oneEntry) Since(context.Context, string, int64, int64, func(kv.Event) error) error { return nil }

// compressed returns the entry as it is in a cache without room for plain bytes.
func compressed(t *testing.T, e *bytecache.Entry) *bytecache.Entry {
	t.Helper()
	space := bytecache.New(bytecache.Config{Origin: oneEntry{e}, Feed: oneEntry{e}, PlainBytes: 1})
	cache, err := space.Cache("/registry/", bytecache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	space.Reset(e.Revision)
	cached, _, err := cache.Get(t.Context(), e.Key)
	if err != nil || cached == nil || cached.Plain() != nil {
		t.Fatalf("%s is not compressed: %v", e.Key, err)
	}
	return cached
}

// TestCompressedEntryEncodesEqually checks that a compressed entry has the same encodings
// and labels as a plain one.
func TestCompressedEntryEncodesEqually(t *testing.T) {
	budget := bytecache.NewBudget(1 << 20)
	built, codec := configMaps(t, budget)
	custom, customCodec := widgets(t, budget)
	m := configMap("a", 5000)
	m.Labels = map[string]string{"app": "x", "tier": "back"}
	u := customObject(map[string]any{"spec": strings.Repeat("abc ", 1000)})
	u.SetLabels(m.Labels)
	for _, test := range []struct {
		version *Version
		entry   *bytecache.Entry
		formats []Format
	}{
		{built, entry(t, codec, m, 7), []Format{Protobuf, JSON, MetadataJSON, MetadataProtobuf}},
		{custom, entry(t, customCodec, u, 7), []Format{JSON, MetadataJSON}},
	} {
		for _, f := range test.formats {
			cached := compressed(t, test.entry)
			check(t, test.version, cached, f)
			labels, err := test.version.Labels(cached)
			if err != nil || labels["app"] != "x" || cached.Plain() != nil {
				t.Errorf("labels %v, %v", labels, err)
			}
			if !eachLabelAlone(t, cached, m.Labels) || !eachLabelAlone(t, test.entry, m.Labels) {
				t.Error("one label was not read alone")
			}
		}
	}
}

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

// FuzzStored checks that no stored bytes make a reader fail except by an error.
func FuzzStored(f *testing.F) {
	budget := bytecache.NewBudget(1 << 20)
	built, codec := configMaps(f, budget)
	custom, customCodec := widgets(f, budget)
	m := configMap("a", 200)
	m.Labels = map[string]string{"a": "b"}
	f.Add(entry(f, codec, m, 1).Data())
	u := customObject(map[string]any{"spec": []any{1.5, nil, "x", map[string]any{}}})
	u.SetLabels(m.Labels)
	f.Add(entry(f, customCodec, u, 1).Data())
	f.Add([]byte(`{"metadata":{"labels":{"a":"\"`))
	f.Add([]byte("k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) { checkStored(t, built, custom, data) })
}

// TestDamagedObjectsEqualRendered does the same as FuzzStored, for some time in every run.
func TestDamagedObjectsEqualRendered(t *testing.T) {
	budget := bytecache.NewBudget(1 << 20)
	built, codec := configMaps(t, budget)
	custom, customCodec := widgets(t, budget)
	m := configMap("a", 20)
	m.Labels = map[string]string{"a": "b", "c": "d"}
	u := customObject(map[string]any{"spec": []any{1.5, nil, "x", map[string]any{}}})
	u.SetLabels(m.Labels)
	random := rand.New(rand.NewPCG(5, 6))
	for _, whole := range [][]byte{entry(t, codec, m, 1).Data(), entry(t, customCodec, u, 1).Data()} {
		for range 20000 {
			checkStored(t, built, custom, damage(random, whole))
		}
	}
}

// damage returns a copy with up to three bytes changed, cut off, or with a repeated part.
func damage(random *rand.Rand, whole []byte) []byte {
	data := bytes.Clone(whole)
	for range 1 + random.IntN(3) {
		at := random.IntN(len(data))
		switch random.IntN(4) {
		case 0:
			data[at] = byte(random.Uint32())
		case 1:
			data[at]++
		case 2:
			data = data[:at+1]
		case 3:
			data = append(data[:at:at], data[random.IntN(at+1):]...)
		}
	}
	return data
}

// TestMetadataOfDamagedObjects checks that metadata can be sent if the rest of an object is
// damaged, and nothing else can.
func TestMetadataOfDamagedObjects(t *testing.T) {
	v, codec := configMaps(t, bytecache.NewBudget(1<<20))
	whole := entry(t, codec, configMap("a", 20), 7)
	want, err := v.Render(whole, MetadataJSON, 7)
	if err != nil {
		t.Fatal(err)
	}
	// The key of the only item says that it is longer than the item.
	data := bytes.Clone(whole.Data())
	at := bytes.Index(data, []byte("\x0a\x01a\x12\x14xx"))
	if at < 0 {
		t.Fatalf("no item in %q", data)
	}
	data[at+1] = 100
	e := bytecache.NewEntry(whole.Key, 7, data)
	if got, err := v.AppendObject(nil, e, MetadataJSON); err != nil || !bytes.Equal(got, want) {
		t.Errorf("metadata %q, %v, want %q", got, err, want)
	}
	if got, err := v.AppendObject(nil, e, JSON); err == nil {
		t.Errorf("the complete object is %q", got)
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

// checkStored checks that every stored object is sent as it would be rendered, or fails if
// rendering fails.
func checkStored(t *testing.T, built, custom *Version, data []byte) {
	for _, v := range []*Version{built, custom} {
		for _, format := range []Format{JSON, Protobuf, MetadataJSON} {
			if !v.Serves(format) {
				continue
			}
			e := bytecache.NewEntry("k", 12, data)
			want, rendered := v.Render(e, format, e.Revision)
			got, err := v.AppendObject(nil, e, format)
			if (err == nil) != (rendered == nil) || err == nil && !bytes.Equal(got, want) {
				t.Fatalf("stored %q: %q, %v, want %q, %v", data, got, err, want, rendered)
			}
		}
		_, _ = v.Labels(bytecache.NewEntry("", 0, data))
	}
	var l Labels
	labels, ok := l.Of(data)
	if !ok || !bytes.HasPrefix(data, protobufMagic) {
		return
	}
	e := bytecache.NewEntry("", 1, data)
	obj, err := built.Decode(e, 1)
	if err != nil {
		return
	}
	eachLabelAlone(t, e, labels)
	if diff := cmp.Diff(obj.(*corev1.ConfigMap).Labels, labels, equateEmpty); diff != "" {
		t.Fatalf("stored %q: labels (-decoded +read):\n%s", data, diff)
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
