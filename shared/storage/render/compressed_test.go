package render

import (
	"context"
	"strings"
	"testing"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
)

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
