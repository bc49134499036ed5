package render

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"triune.dev/shared/storage/bytecache"
)

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
		t.Errorf("the whole object is %q", got)
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
