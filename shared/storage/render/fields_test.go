package render

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
)

// podFields are of all types, with and without something in their place.
var podFields = Selectable{
	APIVersion: "v1", Kind: "Pod", Namespaced: true,
	Fields: []SelectableField{
		{Name: "node", Path: []uint8{2, 10}},
		{Name: "scheduler", Path: []uint8{2, 19}, Defaulted: true},
		{Name: "account", Path: []uint8{2, 8}, Fallback: []uint8{2, 9}},
		{Name: "hostNetwork", Path: []uint8{2, 11}, Type: Bool},
		{Name: "priority", Path: []uint8{2, 25}, Type: Int32},
		{Name: "ip", Path: []uint8{3, 6}, Fallback: []uint8{3, 12, 1}, Distinct: true},
	},
}

// fieldsOf returns the podFields of a decoded pod; ok is false if they must not be read
// from its bytes.
func fieldsOf(p *corev1.Pod) (fields map[string]string, ok bool) {
	account, ip, priority := p.Spec.ServiceAccountName, p.Status.PodIP, int32(0)
	if account == "" {
		account = p.Spec.DeprecatedServiceAccount
	}
	if ip == "" && len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	if p.Spec.Priority != nil {
		priority = *p.Spec.Priority
	}
	return map[string]string{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "node": p.Spec.NodeName, "scheduler": p.Spec.SchedulerName, "account": account,
		"hostNetwork": strconv.FormatBool(p.Spec.HostNetwork), "priority": strconv.Itoa(int(priority)), "ip": ip,
	}, p.Spec.SchedulerName != ""
}

func newFields(t testing.TB, s Selectable) *Fields {
	t.Helper()
	f, err := NewFields(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func runningPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: "node-17", SchedulerName: "default-scheduler", ServiceAccountName: "web", DeprecatedServiceAccount: "web", Priority: new(int32),
			Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1.2.3"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}, {IP: "fd00::123"}}},
	}
}

// storedPod returns the bytes of a pod with additional bytes after the fields of its spec.
func storedPod(t testing.TB, p *corev1.Pod, more ...byte) []byte {
	t.Helper()
	spec, err := p.Spec.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	meta, err := (&corev1.Pod{ObjectMeta: p.ObjectMeta}).ObjectMeta.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Status.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var raw []byte
	for i, message := range [][]byte{meta, append(spec, more...), status} {
		raw = append(raw, byte(i+1)<<3|wireBytes)
		raw = append(binary.AppendUvarint(raw, uint64(len(message))), message...)
	}
	data, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.Clone(protobufMagic), data...)
}

func unmarshalPod(data []byte) (*corev1.Pod, error) {
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(bytes.TrimPrefix(data, protobufMagic)); err != nil {
		return nil, err
	}
	var p corev1.Pod
	return &p, p.Unmarshal(unknown.Raw)
}

// TestFieldsEqualDecoded checks that the fields read from stored bytes are those of the
// decoded object.
func TestFieldsEqualDecoded(t *testing.T) {
	f := newFields(t, podFields)
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		more   []byte
		plain  bool
	}{
		"all":                           {func(*corev1.Pod) {}, nil, true},
		"in place of another":           {func(p *corev1.Pod) { p.Spec.ServiceAccountName, p.Status.PodIP = "", "" }, nil, false},
		"in place of another, and one":  {func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "", p.Status.PodIPs[1:] }, nil, true},
		"repeated, the first is empty":  {func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs[0].IP = "", "" }, nil, false},
		"negative":                      {func(p *corev1.Pod) { *p.Spec.Priority = -5 }, nil, true},
		"a name that the key has not":   {func(p *corev1.Pod) { p.Name = "other" }, nil, true},
		"a name longer than the key":    {func(p *corev1.Pod) { p.Name = strings.Repeat("n", 300) }, nil, true},
		"empty and defaulted":           {func(p *corev1.Pod) { p.Spec.SchedulerName = "" }, nil, false},
		"nothing":                       {func(p *corev1.Pod) { *p = corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "s"}} }, nil, true},
		"twice":                         {func(*corev1.Pod) {}, []byte{10<<3 | wireBytes, 1, 'x'}, false},
		"twice, and empty":              {func(*corev1.Pod) {}, []byte{10<<3 | wireBytes, 0}, false},
		"a varint twice":                {func(*corev1.Pod) {}, []byte{11 << 3, 1}, false},
		"of another type":               {func(p *corev1.Pod) { p.Spec.Priority = nil }, []byte{25<<3&0x7f | wireBytes | 0x80, 1, 1, '1'}, false},
		"a field that nobody knows":     {func(*corev1.Pod) {}, []byte{0xfa, 0x7f, 1, 'x'}, true},
		"a type that is seldom used":    {func(*corev1.Pod) {}, []byte{0xf9, 0x7f, 1, 2, 3, 4, 5, 6, 7, 8}, false},
		"invalid number":                {func(*corev1.Pod) {}, []byte{0, 1}, false},
		"a number that overflows to 10": {func(*corev1.Pod) {}, binary.AppendUvarint(nil, (1<<32|10)<<3), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := runningPod()
			tc.change(p)
			got, ok := f.OfEntry(bytecache.NewEntry("/registry/pods/default/web-1", 1, storedPod(t, p, tc.more...)))
			if ok != tc.plain {
				t.Errorf("read: %t, want %t", ok, tc.plain)
			}
			if want, _ := fieldsOf(p); ok && !cmp.Equal(want, got) {
				t.Errorf("fields (-decoded +read):\n%s", cmp.Diff(want, got))
			}
			if read := eachAlone(t, f, storedPod(t, p, tc.more...)); tc.plain && read != len(got) {
				t.Errorf("%d of %d fields can be read alone", read, len(got))
			}
		})
	}
	t.Run("compressed", func(t *testing.T) {
		p := runningPod()
		p.Annotations = map[string]string{"a": strings.Repeat("abc ", 1000)}
		e := compressed(t, bytecache.NewEntry("/registry/pods/default/web-1", 7, storedPod(t, p)))
		want, _ := fieldsOf(p)
		if got, ok := f.OfEntry(e); !ok || !cmp.Equal(want, got) || e.Plain() != nil {
			t.Errorf("got %v, %t", got, ok)
		}
	})
	for name, data := range map[string][]byte{
		"nothing": nil, "JSON": []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"n"}}`),
		"another kind":    bytes.Replace(storedPod(t, runningPod()), []byte("Pod"), []byte("Pot"), 1),
		"another version": bytes.Replace(storedPod(t, runningPod()), []byte("v1"), []byte("v2"), 1),
	} {
		if got, ok := f.of("k", data); ok {
			t.Errorf("%s has fields %v", name, got)
		}
	}
}

// eachAlone compares each field that can be read by itself with that of the decoded pod,
// and counts them.
func eachAlone(t *testing.T, f *Fields, stored []byte) (read int) {
	t.Helper()
	p, err := unmarshalPod(stored)
	if err != nil {
		return 0
	}
	want, _ := fieldsOf(p)
	e := bytecache.NewEntry("/registry/pods/default/web-1", 1, stored)
	for name := range want {
		got, has, ok := f.ValueOfEntry(e, name)
		if !ok {
			continue
		}
		read++
		if got != want[name] || !has {
			t.Errorf("stored %q: field %s alone is %q, want %q", stored, name, got, want[name])
		}
	}
	if _, _, ok := f.ValueOfEntry(e, "unknown"); ok {
		t.Error("a field that the kind has not is known")
	}
	return read
}

// TestFieldsOfDamagedObjects checks that the fields read from damaged bytes are those of
// the decoded object, if that can be decoded.
func TestFieldsOfDamagedObjects(t *testing.T) {
	f := newFields(t, podFields)
	random := rand.New(rand.NewPCG(7, 8))
	whole := storedPod(t, runningPod())
	read, alone := 0, 0
	for range 50000 {
		data := damage(random, whole)
		alone += eachAlone(t, f, data)
		got, ok := f.of("/registry/pods/default/web-1", data)
		if !ok {
			continue
		}
		p, err := unmarshalPod(data)
		if err != nil {
			continue
		}
		read++
		if want, plain := fieldsOf(p); !plain || !cmp.Equal(want, got) {
			t.Fatalf("stored %q (-decoded +read):\n%s", data, cmp.Diff(want, got))
		}
	}
	if read < 1000 || alone < 5000 {
		t.Errorf("only %d could be read and decoded, and %d fields alone", read, alone)
	}
}

// TestInvalidSelectablesAreRefused checks that NewFields refuses descriptions that it
// cannot implement.
func TestInvalidSelectablesAreRefused(t *testing.T) {
	many := make([]SelectableField, maxValues)
	for i := range many {
		many[i] = SelectableField{Name: "f", Path: []uint8{2, uint8(i + 1)}}
	}
	for name, fields := range map[string][]SelectableField{
		"no path":                 {{Name: "a"}},
		"a long path":             {{Name: "a", Path: []uint8{2, 1, 1, 1}}},
		"no field has number 0":   {{Name: "a", Path: []uint8{2, 0}}},
		"a high number":           {{Name: "a", Path: []uint8{2, 64}}},
		"a high number in place":  {{Name: "a", Path: []uint8{2, 1}, Fallback: []uint8{2, 200}}},
		"a message and its field": {{Name: "a", Path: []uint8{2}}, {Name: "b", Path: []uint8{2, 1}}},
		"metadata itself":         {{Name: "a", Path: []uint8{1}}},
		"two types":               {{Name: "a", Path: []uint8{2}}, {Name: "b", Path: []uint8{2}, Type: Bool}},
		"too many":                many,
	} {
		if _, err := NewFields(Selectable{APIVersion: "v1", Kind: "Pod", Fields: fields}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestFieldsAllocateOneMap checks that only the map, and strings that exist nowhere else,
// are allocated.
func TestFieldsAllocateOneMap(t *testing.T) {
	f := newFields(t, podFields)
	e := bytecache.NewEntry("/registry/pods/default/web-1", 1, storedPod(t, runningPod()))
	want, _ := fieldsOf(runningPod())
	bare := testing.AllocsPerRun(100, func() {
		m := make(bytecache.Attributes, len(want))
		m["metadata.name"] = e.Key
		sinkAttributes = m
	})
	if got := testing.AllocsPerRun(100, func() { sinkAttributes, _ = f.OfEntry(e) }); got > bare+1 {
		t.Errorf("fields allocate %v times, want those of a map (%v) and the address", got, bare)
	}
	if got := testing.AllocsPerRun(100, func() { sinkValue, _, _ = f.ValueOfEntry(e, "node") }); got > 0 {
		t.Errorf("one field allocates %v times", got)
	}
}

var (
	sinkAttributes bytecache.Attributes
	sinkValue      string
)

// Reproduce with: go test -run '^$' -bench Fields ./shared/storage/render
// A benchmark in services/core compares it with decoding.
func BenchmarkFields(b *testing.B) {
	f := newFields(b, podFields)
	e := bytecache.NewEntry("/registry/pods/default/web-1", 1, storedPod(b, runningPod()))
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if sinkAttributes, _ = f.OfEntry(e); sinkAttributes == nil {
				b.Fatal("not read")
			}
		}
	})
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if sinkValue, _, _ = f.ValueOfEntry(e, "node"); sinkValue == "" {
				b.Fatal("not read")
			}
		}
	})
}
