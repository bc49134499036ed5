package bytecache

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"triune.dev/shared/storage/kv"
)

// application returns an object as a controller stores it: its managed fields, conditions
// and names repeat, its digests, identifiers and times do not. It has 10 kB with nine
// components.
func application(i, components int) []byte {
	type object = map[string]any
	r := rand.New(rand.NewPCG(uint64(i), 11))
	random := func(n int) []byte {
		b := make([]byte, n)
		for at := range b {
			b[at] = byte(r.Uint32())
		}
		return b
	}
	digest := func(n int) string { return hex.EncodeToString(random(n)) }
	words := []string{"reconcile", "cluster", "node", "volume", "timeout", "failed", "waiting", "image", "ready", "certificate", "gateway", "route", "backend", "probe", "upgrade", "restart", "memory", "network", "policy", "quota"}
	word := func() string { return words[r.IntN(len(words))] }
	sentence := func(n int) string {
		s := word()
		for range n - 1 {
			s += " " + word()
		}
		return s
	}
	moment := func() string {
		return time.Unix(1790000000+r.Int64N(30000000), 0).UTC().Format(time.RFC3339)
	}
	name := fmt.Sprintf("app-%s-%d", word(), i)
	var parts, conditions, resources []object
	owned := object{}
	for k := range components {
		part := fmt.Sprintf("%s-%d", word(), k)
		parts = append(parts, object{
			"name": part, "image": "registry.example.com/team-" + word() + "/" + word() + "@sha256:" + digest(32), "replicas": r.IntN(20), "port": 1024 + r.IntN(60000),
			"resources": object{"requests": object{"cpu": fmt.Sprintf("%dm", r.IntN(4000)), "memory": fmt.Sprintf("%dMi", r.IntN(8192))}, "limits": object{"memory": fmt.Sprintf("%dMi", r.IntN(16384))}},
			"env":       []object{{"name": "REGION", "value": word()}, {"name": "TOKEN_HASH", "value": digest(16)}, {"name": "LOG_LEVEL", "value": "info"}},
		})
		owned[fmt.Sprintf("k:{\"name\":%q}", part)] = object{".": object{}, "f:image": object{}, "f:name": object{}, "f:port": object{}, "f:replicas": object{}, "f:env": object{}, "f:resources": object{"f:requests": object{"f:cpu": object{}, "f:memory": object{}}, "f:limits": object{"f:memory": object{}}}}
		conditions = append(conditions, object{"type": word(), "status": "True", "reason": "Reconcile" + word(), "message": sentence(7), "lastTransitionTime": moment(), "observedGeneration": r.IntN(50)})
		resources = append(resources, object{"kind": "Deployment", "group": "apps", "version": "v1", "name": name + "-" + word(), "namespace": "team-" + word(), "uid": digest(16), "hash": digest(20), "health": object{"status": "Healthy"}, "syncedAt": moment()})
	}
	data, err := json.Marshal(object{
		"apiVersion": "example.com/v1", "kind": "Application",
		"metadata": object{
			"name": name, "namespace": "team", "uid": digest(16), "generation": r.IntN(40), "creationTimestamp": moment(),
			"labels":        object{"app.kubernetes.io/instance": name, "app.kubernetes.io/part-of": word()},
			"annotations":   object{"example.com/checksum": digest(32), "example.com/note": sentence(20)},
			"managedFields": []object{{"manager": "controller", "operation": "Apply", "apiVersion": "example.com/v1", "time": moment(), "fieldsType": "FieldsV1", "fieldsV1": object{"f:spec": object{"f:components": owned}}}},
		},
		"spec":   object{"components": parts, "bundle": base64.StdEncoding.EncodeToString(random(30 * components))},
		"status": object{"conditions": conditions, "resources": resources},
	})
	if err != nil {
		panic(err) // maps, strings and numbers only
	}
	return append(data, '\n')
}

// applications is an Origin with n applications at revision 100.
type applications struct{ n, components int }

func (a applications) List(ctx context.Context, r kv.Range) (kv.Page, error) {
	page, err := filled(a.n, 8).List(ctx, r)
	for _, item := range page.KVs {
		var i int
		if _, err := fmt.Sscanf(string(bytes.TrimRight(item.Value, "\x00")), "%d", &i); err != nil {
			return page, err
		}
		item.Value = bytes.Clone(application(i, a.components)) // as large as it is
	}
	return page, err
}

// runCompressor runs the compressor until the returned function is called.
func runCompressor(t *testing.T, s *Space) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.RunCompressor(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// countCompressed counts the compressed and the plain entries of a cache.
func countCompressed(c *Cache) (compressed, plain int) {
	c.tree.Scan(func(e *Entry) bool {
		if e.compressed.Load() != nil {
			compressed++
		} else {
			plain++
		}
		return true
	})
	return compressed, plain
}

// TestCompressorWaitsForNewBytes checks that a pass that could compress nothing is followed
// by another only when an eighth of the limit is new, so that the passes are bounded by the
// writes.
func TestCompressorWaitsForNewBytes(t *testing.T) {
	const limit = 800
	for name, test := range map[string]struct {
		left, came int64
		again      bool
	}{
		"all is compressed":                    {left: 600, came: 300},
		"nothing can be compressed":            {left: 5000},
		"as little came as does not count":     {left: 5000, came: limit / 8},
		"more came":                            {left: 5000, came: limit/8 + 1, again: true},
		"all of what is left came":             {left: 5000, came: 5000, again: true},
		"what came and more has gone meantime": {left: limit, came: 5000},
	} {
		t.Run(name, func(t *testing.T) {
			trigger := nextTrigger(limit, test.left, test.came)
			if again := test.left > trigger; again != test.again {
				t.Errorf("%d bytes are left, %d of them new, and the next pass begins beyond %d", test.left, test.came, trigger)
			}
			if trigger < limit || trigger > max(limit, test.left)+limit/8 {
				t.Errorf("the next pass begins beyond %d", trigger)
			}
		})
	}
}

// TestCompressesEntriesNotReadRecently checks that entries without room are compressed, at
// once in a load and soon after a write; that they read the same; and that entries read
// repeatedly stay plain, within the limit.
func TestCompressesEntriesNotReadRecently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, limit = 300, 200_000
		c := loadedCache(t, applications{n, 3}, Config{PlainBytes: limit}, Options{})
		stop := runCompressor(t, c.space)
		defer stop()
		check := func(when string, expected func(i int) []byte) {
			t.Helper()
			s, err := c.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var scratch []byte
			for range 3 { // LISTs of everything
				i := 0
				s.Ascend("/r/", func(e *Entry) bool {
					var data []byte
					data, scratch = e.DataInto(scratch)
					if !bytes.Equal(data, expected(i)) || !bytes.Equal(e.Data(), data) || e.Size() != len(data) {
						t.Fatalf("%s: object %d is %.80s", when, i, data)
					}
					i++
					return true
				})
				time.Sleep(time.Minute)
				synctest.Wait()
				if used := c.space.Plain(); used > limit {
					t.Fatalf("%s: %d plain bytes, the limit is %d", when, used, limit)
				}
			}
		}
		compressed, plain := countCompressed(c)
		if compressed < n/2 || plain == 0 {
			t.Errorf("%d compressed and %d not after the load", compressed, plain)
		}
		check("loaded", func(i int) []byte { return application(i, 3) })
		for i := range n {
			apply(c, modify(i, 101+int64(i), string(application(n+i, 3))))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		check("written", func(i int) []byte { return application(n+i, 3) })

		// One object, whichever it is, is read all the time.
		for i := range 5 {
			key := filledKey(i * n / 5)
			for range 10 {
				e, _, err := c.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				e.Data()
				time.Sleep(2 * quietPause)
				synctest.Wait()
			}
			if e, _, _ := c.Get(t.Context(), key); e.Plain() == nil {
				t.Errorf("%s is read all the time and is compressed", key)
			}
		}
	})
}

// TestIncompressibleEntriesStayPlain checks that nothing is compressed if that is disabled,
// nor small entries, nor entries without redundancy, which are tried once.
func TestIncompressibleEntriesStayPlain(t *testing.T) {
	noise := func(r kv.Range) (kv.Page, error) {
		random := rand.NewChaCha8([32]byte{1})
		page, err := filled(50, 2000)(r)
		for _, item := range page.KVs {
			_, _ = random.Read(item.Value)
		}
		return page, err
	}
	for name, test := range map[string]struct {
		origin Origin
		limit  int64
		most   int
	}{
		"not wanted": {applications{50, 3}, -1, 0},
		"small":      {filled(500, minCompressBytes-1), 1000, 0},
		// The entries in the dictionary have something in common with it.
		"no redundancy": {pages(noise), 10_000, maxDictionaryBytes/2000 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := loadedCache(t, test.origin, Config{PlainBytes: test.limit}, Options{})
				stop := runCompressor(t, c.space)
				defer stop()
				before, _, _ := c.Get(t.Context(), filledKey(0))
				apply(c, modify(0, 101, string(before.Data())))
				time.Sleep(time.Minute)
				synctest.Wait()
				if compressed, _ := countCompressed(c); compressed > test.most {
					t.Errorf("%d are compressed", compressed)
				}
				if used := c.space.Plain(); test.limit > 0 && used > test.limit {
					t.Errorf("%d bytes would be compressed again", used)
				}
			})
		})
	}
}

// TestLogIsCompressed checks that states that only the log retains are compressed.
func TestLogIsCompressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := loadedCache(t, applications{10, 3}, Config{PlainBytes: 20_000}, Options{})
		stop := runCompressor(t, c.space)
		defer stop()
		const writes = 400
		for i := range writes {
			apply(c, modify(i%10, 101+int64(i), string(application(i, 3))))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		compressed := 0
		cursor, err := c.Cursor(t.Context(), 100+10)
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(110); at < 100+writes; {
			changes, err := cursor.Available(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, change := range changes.List {
				if change.Before.compressed.Load() != nil {
					compressed++
				}
				at = change.Revision
				if !bytes.Equal(change.Now.Data(), application(int(at-101), 3)) || !bytes.Equal(change.Before.Data(), application(int(at-111), 3)) {
					t.Fatalf("the change at %d has other bytes", at)
				}
			}
		}
		if compressed < writes/2 {
			t.Errorf("%d of %d are compressed", compressed, writes)
		}
	})
}

// TestCompressorWithConcurrentReaders compresses and restores entries while others read and
// replace them.
func TestCompressorWithConcurrentReaders(t *testing.T) {
	const n, writes = 100, 3000
	c := loadedCache(t, applications{n, 1}, Config{PlainBytes: 30_000, LogBytes: 50_000}, Options{
		Labels: func(e *Entry) (Attributes, error) { return Attributes{"size": fmt.Sprint(len(e.Data()))}, nil },
	})
	valid := map[string]bool{}
	var values []string
	for i := range 2 * n {
		values = append(values, string(application(i, 1)))
		valid[values[i]] = true
	}
	stop := runCompressor(t, c.space)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var scratch, data []byte
			for ctx.Err() == nil {
				s, err := c.Snapshot(ctx)
				if err != nil {
					return
				}
				s.Ascend("/r/", func(e *Entry) bool {
					data, scratch = e.DataInto(scratch)
					if !valid[string(data)] || !valid[string(e.Data())] {
						t.Errorf("%s at %d is %.80s", e.Key, e.Revision, data)
					}
					return ctx.Err() == nil
				})
				if _, err := c.Select(ctx, Term{Key: "size", Values: []string{"1"}}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range writes {
		apply(c, modify(i%n, 101+int64(i), values[i%len(values)]))
		if i%64 == 0 {
			runtime.Gosched()
		}
	}
	cancel()
	readers.Wait()
	stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plain != c.space.plain.Load() || c.plain < 0 {
		t.Errorf("%d plain bytes in the cache, %d in the space", c.plain, c.space.plain.Load())
	}
}
