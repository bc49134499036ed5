package bytecache

import (
	"bytes"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"triune.dev/shared/storage/kv"
)

// TestLimitsHoldUnderLoad writes and reads at random: the log, the pinned snapshots and the
// derived forms stay within their limits, and use them.
func TestLimitsHoldUnderLoad(t *testing.T) {
	const limit = 100_000
	c := loadedCache(t, filled(200, 1000), Config{LogBytes: limit, SnapshotBytes: limit, FormBytes: limit}, Options{})
	kind := NewFormID()
	for revision := int64(101); revision < 3000; revision++ {
		s, err := c.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.Pin(s)
		apply(c, modify(int(revision*7%200), revision, string(make([]byte, 1000))))
		e, _ := c.Peek(filledKey(int(revision * 13 % 200)))
		render := func(*Entry) ([]byte, error) { return make([]byte, 700), nil }
		if _, err := e.Form(c.space.Budget(), kind, render); err != nil {
			t.Fatal(err)
		}
		stats := c.Stats()
		if stats.LogBytes > limit || stats.PinnedBytes > limit || stats.Pinned > maxPinned || c.space.Budget().Used() > limit {
			t.Fatalf("at %d: %+v, forms %d", revision, stats, c.space.Budget().Used())
		}
		if revision > 2000 && (stats.LogBytes < limit*3/4 || stats.Pinned < maxPinned/2 || c.space.Budget().Used() < limit*3/4) {
			t.Fatalf("at %d it holds less than it may: %+v, forms %d", revision, stats, c.space.Budget().Used())
		}
	}
}

// TestBudgetDropsUnusedForms checks that recently used forms stay cached, and dropped ones
// are rendered again.
func TestBudgetDropsUnusedForms(t *testing.T) {
	budget := NewBudget(10 * (100 + formOverhead))
	kind, other := NewFormID(), NewFormID()
	made := 0
	render := func(*Entry) ([]byte, error) { made++; return make([]byte, 100), nil }
	get := func(e *Entry, kind FormID) {
		t.Helper()
		if data, err := e.Form(budget, kind, render); err != nil || len(data) != 100 {
			t.Fatalf("form: %d bytes, %v", len(data), err)
		}
	}
	hot := &Entry{}
	get(hot, kind)
	get(hot, other)
	for range 100 {
		get(hot, kind)
		get(&Entry{}, kind)
	}
	if made != 102 {
		t.Errorf("%d forms were made, want 102", made)
	}
	get(hot, other)
	if made != 103 {
		t.Error("an unused form survived 100 others")
	}
	if _, err := (&Entry{Err: errInjected}).Form(budget, kind, render); err == nil {
		t.Error("the form of an entry without data")
	}
	change := &Change{}
	for range 2 {
		_, err := change.Frame(budget, kind, func(*Change) ([]byte, error) { made++; return nil, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if made != 104 {
		t.Errorf("a frame was made %d times", made-103)
	}
}

// TestReplacedObjectsAreCollected checks that neither the budget nor a stalled reader keeps
// alive the entries that the log has dropped, except the reader's own part of the log.
func TestReplacedObjectsAreCollected(t *testing.T) {
	c := loadedCache(t, filled(1, 1000), Config{LogBytes: 20_000}, Options{})
	cursor, err := c.Cursor(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	kind := NewFormID()
	var replaced []weak.Pointer[Entry]
	var stuck Changes
	for revision := int64(101); revision < 600; revision++ {
		apply(c, modify(0, revision, string(make([]byte, 1000))))
		e, _ := c.Peek(filledKey(0))
		if _, err := e.Form(c.space.Budget(), kind, func(*Entry) ([]byte, error) { return make([]byte, 10), nil }); err != nil {
			t.Fatal(err)
		}
		replaced = append(replaced, weak.Make(e))
		if revision == 110 {
			if stuck, err = cursor.Available(t.Context()); err != nil || len(stuck.List) == 0 {
				t.Fatalf("%+v, %v", stuck, err)
			}
		}
	}
	runtime.GC()
	alive := 0
	for _, p := range replaced {
		if p.Value() != nil {
			alive++
		}
	}
	runtime.KeepAlive(stuck)
	// The log's 20 kB, and for the stuck reader's changes what they were and became.
	if alive > 20+2*len(stuck.List)+5 {
		t.Errorf("%d of %d states of an object are alive", alive, len(replaced))
	}
	runtime.KeepAlive(c)
}

// TestMemoryPerObject checks that the cache needs little more memory than the stored bytes.
func TestMemoryPerObject(t *testing.T) {
	for _, tc := range []struct {
		name    string
		n, size int
		// factor bounds the memory as a multiple of the stored bytes, keys included;
		// overhead is added for each object.
		factor   float64
		overhead int64
	}{
		{"100,000 custom resources of 10 kB", 100_000, 10_000, 1.05, 0},
		{"300,000 config maps of 300 bytes", 300_000, 300, 1, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if testing.Short() {
				tc.n /= 20
			}
			before := heap()
			c := loadedCache(t, filled(tc.n, tc.size), Config{}, Options{})
			used := heap() - before
			stats := c.Stats()
			if stats.Objects != tc.n {
				t.Fatalf("%d objects, want %d", stats.Objects, tc.n)
			}
			stored := int64(tc.n) * int64(tc.size+len(filledKey(0)))
			t.Logf("%d objects, %d stored bytes: %d of memory, %.3f ×, %d bytes each beside; counted %d",
				tc.n, stored, used, float64(used)/float64(stored), (used-stored)/int64(tc.n), stats.Bytes)
			if limit := int64(float64(stored)*tc.factor) + tc.overhead*int64(tc.n); used > limit {
				t.Errorf("%d bytes of memory, want at most %d", used, limit)
			}
			runtime.KeepAlive(c)
		})
	}
}

// heap returns the size of the live heap.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestReadsDoNotAllocate checks that reads from memory allocate nothing per object.
func TestReadsDoNotAllocate(t *testing.T) {
	ctx := t.Context()
	c := loadedCache(t, filled(1000, 100), Config{}, Options{Labels: func(e *Entry) (Attributes, error) {
		return Attributes{"app": string(bytes.TrimRight(e.Data(), "\x00"))}, nil
	}})
	cursor, err := c.Cursor(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	revision := int64(100)
	batch := make([]kv.Event, 200)
	kind := NewFormID()
	e, _ := c.Peek(filledKey(0))
	render := func(*Entry) ([]byte, error) { return []byte("form"), nil }
	snapshot, err := c.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	changes := func(n int) func() {
		return func() {
			for i := range batch[:n] {
				revision++
				batch[i] = modify(i, revision, "0")
			}
			apply(c, batch[:n]...)
			before := *cursor
			allocated := testing.AllocsPerRun(10, func() {
				*cursor = before
				if got, err := cursor.Next(ctx, nil); err != nil || len(got.List) != n {
					t.Fatalf("%d changes of %d, %v", len(got.List), n, err)
				}
			})
			if allocated != 0 {
				t.Errorf("delivery of %d changes allocates %v times", n, allocated)
			}
		}
	}
	changes(1)()
	changes(200)()
	key := filledKey(7)
	for _, tc := range []struct {
		name string
		most float64
		do   func()
	}{
		{"get", 0, func() { _, _, _ = c.Get(ctx, key) }},
		{"peek", 0, func() { _, _ = c.Peek(key) }},
		{"nothing to read", 0, func() { _, _ = cursor.Available(ctx) }},
		{"a form that is there", 0, func() { _, _ = e.Form(c.space.Budget(), kind, render) }},
		{"a snapshot", 0, func() { _, _ = c.Snapshot(ctx) }},
		{"a walk over 1,000 entries", 2, func() { snapshot.Ascend("/r/", func(*Entry) bool { return true }) }},
		{"a selection without a match", 3, func() { _, _ = c.Select(ctx, Term{Key: "app", Values: []string{"none"}}) }},
		{"await of what is there", 0, func() { _ = c.space.Await(ctx, 100) }},
	} {
		if got := testing.AllocsPerRun(100, tc.do); got > tc.most {
			t.Errorf("%s allocates %v times, want %v", tc.name, got, tc.most)
		}
	}
}

// TestSelectDeclinesUnselectiveTerms checks that Select leaves a term to a scan if it
// matches a large share of all objects.
func TestSelectDeclinesUnselectiveTerms(t *testing.T) {
	c := loadedCache(t, filled(1000, 10), Config{}, Options{Labels: func(e *Entry) (Attributes, error) {
		i, err := strconv.Atoi(string(bytes.TrimRight(e.Data(), "\x00")))
		return Attributes{"half": strconv.Itoa(i % 2), "fifth": strconv.Itoa(i % 5), "id": strconv.Itoa(i)}, err
	}})
	for _, tc := range []struct {
		term Term
		want int // -1: not known
	}{
		{Term{Key: "half", Values: []string{"0"}}, -1},
		{Term{Key: "fifth", Values: []string{"0"}}, 200},
		{Term{Key: "fifth", Values: []string{"0", "1"}}, -1},
		{Term{Key: "fifth", Values: []string{"0", "7", "0"}}, 200},
		{Term{Key: "fifth"}, -1},
		{Term{Key: "fifth", Values: []string{}}, 0},
		{Term{Key: "none"}, 0},
		{Term{Key: "id", Values: []string{"12", "3", "999", "1000"}}, 3},
		{Term{Field: true, Key: "id"}, 0}, // no fields are known
	} {
		s, err := c.Select(t.Context(), tc.term)
		if err != nil || s.Indexed != (tc.want >= 0) || s.Indexed && len(s.Entries) != tc.want {
			t.Errorf("%+v: %d entries, known %t, %v, want %d", tc.term, len(s.Entries), s.Indexed, err, tc.want)
		}
		for i := 1; i < len(s.Entries); i++ {
			if s.Entries[i-1].Key >= s.Entries[i].Key {
				t.Errorf("%+v: %s before %s", tc.term, s.Entries[i-1].Key, s.Entries[i].Key)
			}
		}
	}
	for i := range 3 * maxIndexes {
		if _, err := c.Select(t.Context(), Term{Key: strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.indexes) != maxIndexes {
		t.Errorf("%d indexes, want at most %d", len(c.indexes), maxIndexes)
	}
}

// The key of a term is a substring of a request's URL, which may be much longer and must be
// collected.
func TestTermsDoNotRetainRequests(t *testing.T) {
	c := loadedCache(t, filled(10, 10), Config{}, Options{})
	c.options.Label = func(*Entry, string) (string, bool, bool) { return "a", true, true }
	term := Term{Key: strings.Repeat("node", 2)[:4]}
	for !c.WorthIndex(term) {
	}
	if _, err := c.Select(t.Context(), term); err != nil {
		t.Fatal(err)
	}
	if len(c.askedOnce) != 1 || len(c.indexes) != 1 {
		t.Fatalf("%d terms and %d indexes", len(c.askedOnce), len(c.indexes))
	}
	for _, used := range []string{c.askedOnce[0].Key, c.indexes[0].key} {
		if used != term.Key || unsafe.StringData(used) == unsafe.StringData(term.Key) {
			t.Errorf("%q is a substring of the request", used)
		}
	}
}

// TestWorthIndexFromSecondQuery checks that an index is worth building from the second
// query of its term on, that a bounded number of terms is remembered, and that
// Options.Indexes always exist.
func TestWorthIndexFromSecondQuery(t *testing.T) {
	indexed := Term{Field: true, Key: "node", Values: []string{"a"}}
	c := loadedCache(t, filled(10, 10), Config{}, Options{
		Fields:  func(e *Entry) (Attributes, error) { return Attributes{"node": "a"}, nil },
		Indexes: []Term{{Field: true, Key: "node"}},
	})
	if !c.WorthIndex(indexed) || !c.Indexed(indexed) || len(c.indexes) != 1 {
		t.Errorf("no index of Options.Indexes, %d others", len(c.indexes))
	}
	label := func(i int) Term { return Term{Key: strconv.Itoa(i)} }
	for i := range maxAskedOnce {
		if c.WorthIndex(label(i)) {
			t.Errorf("label %d was asked for before", i)
		}
	}
	if c.Indexed(label(0)) || !c.WorthIndex(label(0)) || !c.WorthIndex(Term{Key: "1", Values: []string{"x"}}) || c.WorthIndex(Term{Field: true, Key: "1"}) {
		t.Error("wrong about repeated terms")
	}
	for i := range 10 * maxAskedOnce {
		c.WorthIndex(label(i))
	}
	if len(c.askedOnce) != maxAskedOnce {
		t.Errorf("%d terms are remembered, want %d", len(c.askedOnce), maxAskedOnce)
	}
	c.space.Reset(100)
	if err := c.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.WorthIndex(indexed) || len(c.indexes) != 1 {
		t.Error("the index is not there after another load")
	}
}

// TestMatcherReadsOneAttribute checks that Match reads a single attribute where
// Options.Label can, and all of them elsewhere.
func TestMatcherReadsOneAttribute(t *testing.T) {
	all := func(e *Entry) (Attributes, error) {
		switch e.Key {
		case filledKey(0):
			return nil, errors.New("unreadable")
		case filledKey(1):
			return Attributes{}, nil
		}
		return Attributes{"app": "web"}, nil
	}
	asked := 0
	for name, o := range map[string]Options{
		"all": {Labels: all},
		"one": {
			Labels: func(e *Entry) (Attributes, error) { asked++; return all(e) },
			Label:  single(all),
		},
	} {
		c := loadedCache(t, filled(3, 10), Config{}, o)
		for i, want := range []struct{ any, web, api, err bool }{{err: true}, {}, {any: true, web: true}} {
			e, _ := c.Peek(filledKey(i))
			for values, meets := range map[string]bool{"": want.any, "web": want.web, "api": want.api} {
				term := Term{Key: "app"}
				if values != "" {
					term.Values = []string{"db", values}
				}
				matcher := c.Matcher(term)
				if got, err := matcher.Match(e); got != meets || (err != nil) != want.err {
					t.Errorf("%s: entry %d meets %q: %t, %v", name, i, values, got, err)
				}
			}
		}
	}
	if asked != 3 {
		t.Errorf("all labels were asked for %d times, want 3: of the entry that cannot be read", asked)
	}
}
