package etcdstore

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"triune.dev/shared/storage/kv"
)

// countingReader counts reads of single keys.
type countingReader struct {
	Reader
	gets int
}

func (r *countingReader) Get(ctx context.Context, key string, o kv.ReadOptions) (kv.Item, error) {
	r.gets++
	return r.Reader.Get(ctx, key, o)
}

// TestUpdateContention checks that no update is lost when many clients write one object.
func TestUpdateContention(t *testing.T) {
	f := newFixture(t)
	f.create(t, podNamed("a", label("n", "0")))
	const writers, updates = 8, 25
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			suggestion := &example.Pod{}
			for i := range updates {
				var cached runtime.Object
				if i%2 == 1 {
					cached = suggestion // by now most likely out of date
				}
				out := &example.Pod{}
				err := f.GuaranteedUpdate(t.Context(), podKey("a"), out, false, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
					pod := obj.(*example.Pod).DeepCopy()
					n, err := strconv.Atoi(pod.Labels["n"])
					pod.Labels["n"] = strconv.Itoa(n + 1)
					return pod, nil, err
				}, cached)
				if err != nil {
					t.Errorf("update: %v", err)
				}
				suggestion = out
			}
		})
	}
	group.Wait()
	pod := &example.Pod{}
	if err := f.Get(t.Context(), podKey("a"), storage.GetOptions{}, pod); err != nil {
		t.Fatal(err)
	}
	if want := strconv.Itoa(writers * updates); pod.Labels["n"] != want {
		t.Errorf("%s updates survived, want %s", pod.Labels["n"], want)
	}
}

// TestUpdateSuggestion checks that a suggestion saves the read before a write, but not the
// read that confirms a result without a write.
func TestUpdateSuggestion(t *testing.T) {
	f := newFixture(t)
	f.create(t, podNamed("a"))
	reads := &countingReader{Reader: f.reader}
	f.reader = reads
	errRefused := errors.New("refused")
	set := func(value string) storage.UpdateFunc {
		return func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			pod := obj.(*example.Pod).DeepCopy()
			pod.Labels = map[string]string{"n": value}
			return pod, nil, nil
		}
	}
	refuse := func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		return nil, nil, errRefused
	}
	uid := storage.NewUIDPreconditions("other")
	for _, tc := range []struct {
		name   string
		stale  bool // the suggestion is older than what is stored
		update storage.UpdateFunc
		pre    *storage.Preconditions
		err    func(error) bool
		writes bool
		reads  int
	}{
		{name: "write", update: set("write"), writes: true},
		{name: "write over a stale suggestion", stale: true, update: set("again"), writes: true},
		{name: "no-op", update: set("stored"), reads: 1},
		{name: "no-op against a stale suggestion only", stale: true, update: set("suggested"), writes: true, reads: 1},
		{name: "refusal", update: refuse, err: func(err error) bool { return errors.Is(err, errRefused) }, reads: 1},
		{name: "refusal of a stale suggestion", stale: true, update: refuse, err: func(err error) bool { return errors.Is(err, errRefused) }, reads: 1},
		{name: "precondition", update: set("x"), pre: uid, err: storage.IsInvalidObj, reads: 1},
		{name: "precondition, stale suggestion", stale: true, update: set("x"), pre: uid, err: storage.IsInvalidObj, reads: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			suggestion := f.update(t, "a", func(p *example.Pod) { p.Labels = map[string]string{"n": "suggested"} })
			stored := suggestion
			if tc.stale || tc.name == "no-op" {
				stored = f.update(t, "a", func(p *example.Pod) { p.Labels = map[string]string{"n": "stored"} })
			}
			if !tc.stale {
				suggestion = stored
			}
			reads.gets = 0
			out := &example.Pod{}
			err := f.GuaranteedUpdate(t.Context(), podKey("a"), out, false, tc.pre, tc.update, suggestion.DeepCopy())
			if tc.err != nil {
				if !tc.err(err) {
					t.Errorf("error %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if wrote := out.ResourceVersion != stored.ResourceVersion; wrote != tc.writes {
				t.Errorf("wrote: %t (from %s to %s), want %t", wrote, stored.ResourceVersion, out.ResourceVersion, tc.writes)
			}
			if reads.gets != tc.reads {
				t.Errorf("%d reads, want %d", reads.gets, tc.reads)
			}
		})
	}
}

// TestEncryptionRotation checks that after a new first key an update without changes writes
// once.
func TestEncryptionRotation(t *testing.T) {
	transformer := func(first, second string) value.Transformer {
		var all []value.PrefixTransformer
		for _, key := range []string{first, second} {
			block, err := aes.NewCipher([]byte(key))
			if err != nil {
				t.Fatal(err)
			}
			gcm, err := aestransformer.NewGCMTransformer(block)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, value.PrefixTransformer{Prefix: []byte("k8s:enc:aesgcm:v1:" + key[:2] + ":"), Transformer: gcm})
		}
		return value.NewPrefixTransformers(nil, all...)
	}
	oldKey, newKey := "k1-0123456789abc", "k2-0123456789abc"
	f := newFixture(t, func(c *Config) { c.Transformer = transformer(oldKey, newKey) })
	created := f.create(t, podNamed("a", label("secret", "hunter2")))
	stored := func() []byte {
		resp, err := f.etcd.Get(t.Context(), "/registry"+podKey("a"))
		if err != nil {
			t.Fatal(err)
		}
		return resp.Kvs[0].Value
	}
	if v := stored(); !bytes.HasPrefix(v, []byte("k8s:enc:aesgcm:v1:k1:")) || bytes.Contains(v, []byte("hunter2")) {
		t.Fatalf("stored in plain, or with the wrong key: %q", v)
	}
	f.Store = newStore(t, f.etcd, func(c *Config) { c.Transformer = transformer(newKey, oldKey) })
	nothing := func(*example.Pod) {}
	rewritten := f.update(t, "a", nothing)
	if rewritten.ResourceVersion == created.ResourceVersion || !bytes.HasPrefix(stored(), []byte("k8s:enc:aesgcm:v1:k2:")) {
		t.Fatalf("not written again with the new key: revision %s to %s", created.ResourceVersion, rewritten.ResourceVersion)
	}
	if again := f.update(t, "a", nothing); again.ResourceVersion != rewritten.ResourceVersion {
		t.Errorf("written again without need: revision %s to %s", rewritten.ResourceVersion, again.ResourceVersion)
	}
	// The value is bound to its key.
	if _, err := f.etcd.Put(t.Context(), "/registry"+podKey("b"), string(stored())); err != nil {
		t.Fatal(err)
	}
	if err := f.Get(t.Context(), podKey("b"), storage.GetOptions{}, &example.Pod{}); !storage.IsInternalError(err) {
		t.Errorf("a value moved to another key is read: %v", err)
	}
}

// TestTimeToLive checks that leases are shared, and that an update without a time to live
// makes an object permanent.
func TestTimeToLive(t *testing.T) {
	f := newFixture(t)
	lease := func(name string) int64 {
		resp, err := f.etcd.Get(t.Context(), "/registry"+podKey(name))
		if err != nil || len(resp.Kvs) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		return resp.Kvs[0].Lease
	}
	for _, name := range []string{"a", "b"} {
		if err := f.Create(t.Context(), podKey(name), podNamed(name), nil, 3600); err != nil {
			t.Fatal(err)
		}
	}
	if lease("a") == 0 || lease("a") != lease("b") {
		t.Errorf("leases %x and %x, want a shared one", lease("a"), lease("b"))
	}
	f.update(t, "a", label("n", "1"))
	if lease("a") != 0 {
		t.Error("an update without a time to live kept the lease")
	}
}
