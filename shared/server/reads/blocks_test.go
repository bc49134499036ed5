package reads

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

// TestCombineCRC compares combined checksums with those of the whole.
func TestCombineCRC(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 1<<17)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	for range 200 {
		end := random.IntN(len(data) + 1)
		cut := random.IntN(end + 1)
		first, second := crc32.ChecksumIEEE(data[:cut]), crc32.ChecksumIEEE(data[cut:end])
		if got, want := combineCRC(first, second, int64(end-cut)), crc32.ChecksumIEEE(data[:end]); got != want {
			t.Fatalf("%d and %d bytes: checksum %08x, want %08x", cut, end-cut, got, want)
		}
	}
}

// TestGzipListEqualsPlainList checks that a compressed list has the same content, and is
// compressed where kube-apiserver compresses, before and after changes.
func TestGzipListEqualsPlainList(t *testing.T) {
	w := newWorld(t)
	pods, maps, widgets := w.pods(t), w.configMaps(t), w.widgets(t)
	const n = 300
	for i := range n {
		namespace := []string{"default", "kube-system", "a"}[i%3]
		name := fmt.Sprintf("n%03d", i)
		p := pod(namespace, name, i)
		p.Annotations["large"] = strings.Repeat(fmt.Sprint(i, " "), 200)
		pods.create(t, p)
		m := configMap(namespace, name, i)
		if i == 7 {
			m.Data = map[string]string{"large": strings.Repeat("x", 200<<10)}
		}
		maps.create(t, m)
		widgets.create(t, widget(namespace, name, i))
	}
	check := func(t *testing.T) {
		pods.settle(t)
		for _, tc := range []struct {
			r    *resource
			path string
			gzip bool
		}{
			{pods, "/api/v1/pods", true},
			{pods, "/api/v1/namespaces/default/pods", true},
			{pods, "/api/v1/namespaces/default/pods?limit=5", false},
			{pods, "/api/v1/pods?limit=200", true},
			{pods, "/api/v1/pods?labelSelector=every", true},
			{pods, "/api/v1/namespaces/default/pods/n006", false},
			{maps, "/api/v1/configmaps", true},
			{maps, "/api/v1/namespaces/kube-system/configmaps/n007", true},
			{maps, "/api/v1/namespaces/a/configmaps", false},
			{widgets, "/apis/example.com/v1/widgets", true},
		} {
			for _, media := range []string{
				"application/json", "application/vnd.kubernetes.protobuf,application/json", "application/json;as=Table;g=meta.k8s.io;v=v1",
				"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
			} {
				for _, encoding := range []string{"gzip", "deflate, gzip;q=0.5", "identity , gzip", "br"} {
					a, fell := tc.r.compare(t, tc.path, http.Header{"Accept": {media}, "Accept-Encoding": {encoding}})
					single := strings.Contains(tc.path, "pods/") || strings.Contains(tc.path, "configmaps/")
					if fell && (!single || !strings.Contains(media, "MetadataList")) {
						t.Errorf("%s as %s was not answered from bytes", tc.path, media)
					}
					wanted := tc.gzip && media == "application/json" && strings.HasSuffix(encoding, " gzip")
					if got := a.header.Get("Content-Encoding"); wanted && got != "gzip" {
						t.Errorf("%s: content encoding %q", tc.path, got)
					}
				}
			}
		}
	}
	t.Run("cold", check)
	t.Run("warm", check)
	pods.delete(t, "default", "n003")
	pods.delete(t, "default", "n000")
	pods.create(t, pod("default", "n0000", 1))
	pods.create(t, pod("zzz", "last", 2))
	widgets.delete(t, "a", "n299")
	t.Run("changed", check)
}

// TestChangeReencodesOneBlock checks that a change costs one block, and that the
// compression ratio is almost that of gzip.
func TestChangeReencodesOneBlock(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	const n = 600
	for i := range n {
		pods.create(t, fullPod(i))
	}
	pods.settle(t)
	header := http.Header{"Accept-Encoding": {"gzip"}}
	ours, theirs := ask(t, pods.ours, "/api/v1/pods", header), ask(t, pods.upstream, "/api/v1/pods", header)
	if more := float64(len(ours.body)) / float64(len(theirs.body)); more > 1.4 { // these pods are more alike than real ones
		t.Errorf("%d bytes in blocks, %d in one piece: %.2f times as many", len(ours.body), len(theirs.body), more)
	}
	blocks := len(pods.handlers.blocks.holders)
	pods.delete(t, "team-03", "web-7d4f8b9c5d-00303")
	pods.settle(t)
	ask(t, pods.ours, "/api/v1/pods", header)
	if more := len(pods.handlers.blocks.holders) - blocks; blocks < n/maxBlockObjects || more < 1 || more > 2 {
		t.Errorf("a change compressed %d blocks of %d again", more, blocks)
	}
}

// TestPlainBlocksEqualList checks that a list in blocks has the same content, before and
// after its blocks are cached and objects change, and that cached blocks are used.
func TestPlainBlocksEqualList(t *testing.T) {
	w := newWorld(t)
	pods, maps, widgets := w.pods(t), w.configMaps(t), w.widgets(t)
	const n = minBlockObjects + 100
	for i := range n {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i))
		m := configMap("default", fmt.Sprintf("n%03d", i), i)
		if i == 70 {
			m.Data = map[string]string{"large": strings.Repeat("x", maxPlainBlockBytes)}
		}
		maps.create(t, m)
		widgets.create(t, widget("default", fmt.Sprintf("n%03d", i), i))
	}
	const partial = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	check := func(t *testing.T) {
		pods.settle(t)
		for range 4 {
			for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;" + partial, "application/vnd.kubernetes.protobuf;" + partial} {
				for _, path := range []string{"/api/v1/pods", "/api/v1/namespaces/default/pods?limit=300"} {
					if _, fell := pods.compare(t, path, accept(media)); fell {
						t.Errorf("%s as %s was not answered from bytes", path, media)
					}
				}
				maps.compare(t, "/api/v1/configmaps", accept(media))
				widgets.compare(t, "/apis/example.com/v1/widgets", accept(media+",application/json"))
			}
		}
	}
	t.Run("unchanged", check)
	pods.delete(t, "default", "n000")
	pods.update(t, "default", "n001", 1)
	pods.create(t, pod("default", "n0000", 1))
	pods.update(t, "default", fmt.Sprintf("n%03d", n-1), 1)
	maps.delete(t, "default", "n071")
	widgets.delete(t, "default", "n200")
	t.Run("changed", check)

	b := &pods.handlers.blocks
	made := func() (cached int) {
		for _, h := range b.holders {
			if _, ok := h.entry.CachedForm(b.kind); ok {
				cached++
			}
		}
		return cached
	}
	before := made()
	pods.update(t, "default", "n100", 1)
	pods.settle(t)
	for i, more := range []int{0, 1, 0, 0} { // cached by the second request
		ask(t, pods.ours, "/api/v1/pods", nil)
		if now := made(); now != before+more {
			t.Errorf("list %d after a change: %d more blocks are cached, want %d", i+1, now-before, more)
		} else {
			before = now
		}
	}
	if holders := len(maps.handlers.blocks.holders); holders == 0 {
		t.Error("no blocks of config maps, of which one is large")
	}
}

// TestBlockIDIsUnique checks that the ID depends on the objects, their order and revisions,
// the format and the position.
func TestBlockIDIsUnique(t *testing.T) {
	var b blockCache
	b.init()
	entry := func(key string, revision int64) *bytecache.Entry { return bytecache.NewEntry(key, revision, nil) }
	x, y := entry("/x", 1), entry("/y", 2)
	all := map[blockID]string{}
	for name, id := range map[string]blockID{
		"x, y":          b.id([]*bytecache.Entry{x, y}, blockStyle{}),
		"y, x":          b.id([]*bytecache.Entry{y, x}, blockStyle{}),
		"x":             b.id([]*bytecache.Entry{x}, blockStyle{}),
		"nothing":       b.id(nil, blockStyle{}),
		"a new x":       b.id([]*bytecache.Entry{entry("/x", 3), y}, blockStyle{}),
		"x and y moved": b.id([]*bytecache.Entry{entry("/x", 2), entry("/y", 1)}, blockStyle{}),
		"another y":     b.id([]*bytecache.Entry{x, entry("/z", 2)}, blockStyle{}),
		"protobuf":      b.id([]*bytecache.Entry{x, y}, blockStyle{format: render.Protobuf}),
		"first":         b.id([]*bytecache.Entry{x, y}, blockStyle{first: true}),
		"deflated":      b.id([]*bytecache.Entry{x, y}, blockStyle{deflated: true}),
		"replaced":      b.id([]*bytecache.Entry{x, y}, blockStyle{incarnation: 1}),
	} {
		if other, taken := all[id]; taken {
			t.Errorf("%s is the block of %s", name, other)
		}
		all[id] = name
	}
	if b.id([]*bytecache.Entry{entry("/x", 1), entry("/y", 2)}, blockStyle{}) != b.id([]*bytecache.Entry{x, y}, blockStyle{}) {
		t.Error("the same objects at the same revisions are another block")
	}
}
