package bytecache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"triune.dev/shared/storage/kv"
)

func newTimeline() *timeline {
	return &timeline{states: []state{{}, {}}, events: [][]kv.Event{nil, nil}, compacted: 1}
}

// labelsOf returns the label of an entry. A value is a label, a unique number, and padding.
// The label "-" stands for no label, "!" for an unreadable object.
func labelsOf(e *Entry) (Attributes, error) {
	label, _, _ := strings.Cut(string(e.Data()), "|")
	switch label {
	case "!":
		return nil, errors.New("unreadable")
	case "-":
		return Attributes{}, nil
	}
	return Attributes{"l": label}, nil
}

func fieldsOf(e *Entry) (Attributes, error) {
	return Attributes{"n": e.Key[len(e.Key)-1:]}, nil
}

// single returns a function that looks up one attribute, and sometimes does not know it.
func single(attributes func(*Entry) (Attributes, error)) func(*Entry, string) (string, bool, bool) {
	return func(e *Entry, name string) (value string, has, known bool) {
		all, err := attributes(e)
		value, has = all[name]
		return value, has, err == nil && value != "y"
	}
}

// unreadable reports whether there is an unreadable object.
func (w *world) unreadable(c *Cache, revision int64) bool {
	for _, at := range w.etcd.states[revision].below(c.prefix) {
		if label, _, _ := strings.Cut(at.value, "|"); label == "!" {
			return true
		}
	}
	return false
}

// meets is an independent implementation of Match.
func meets(t Term, key, value string) bool {
	has := key[len(key)-1:]
	if !t.Field {
		has, _, _ = strings.Cut(value, "|")
		if has == "!" || has == "-" {
			return false
		}
	}
	return t.Values == nil || slices.Contains(t.Values, has)
}

var (
	// The space has caches for these prefixes, and receives events of other keys, too.
	prefixes = []string{"/a/", "/ab/", "/b/"}
	modelKey = func(r *rand.Rand) string {
		keys := []string{"/a/", "/a/", "/ab/", "/ab/", "/b/", "/b/", "/a0", "/aa/", "/"}
		return keys[r.IntN(len(keys))] + string(rune('a'+r.IntN(6)))
	}
	modelLabels = []string{"x", "y", "z", "-", "", "x", "y", "z", "-", "", "x", "y", "!"}
)

// modelPlain is Config.PlainBytes where compression is enabled.
const modelPlain = 2000

var errInjected = errors.New("injected failure")

// world is a Space, the etcd and event log that feed it, and their readers.
type world struct {
	etcd *timeline
	// delivered is the revision up to which the event log has fed the space.
	delivered int64
	space     *Space
	caches    []*Cache
	watchers  []*watcher
	checked   []checkedSnapshot
	pinned    []pinnedRevision
	// resets counts the resets.
	resets int
	value  int
	// reading is the watcher whose call is in progress.
	reading *watcher
	// compacted is set when the feed returns a CompactedError.
	compacted bool
	// nested is the source of the steps that are made within requests of the space to etcd
	// and the log.
	nested *rand.Rand
	depth  int
	// failList and failSince count down to a failing call.
	failList, failSince int
	// selecting is the cache whose Select is in progress, decrypting the one whose queue is
	// being drained.
	selecting, decrypting *Cache
	trouble               error
	trace                 func(string, ...any)
}

type checkedSnapshot struct {
	snapshot *Snapshot
	prefix   string
	want     map[string]stored
	cache    *Cache
	epoch    int32
}

// pinnedRevision must be readable until the cache is reset.
type pinnedRevision struct {
	cache    *Cache
	revision int64
	epoch    int32
}

func (w *world) fault(format string, args ...any) error {
	if w.trouble == nil {
		w.trouble = fmt.Errorf(format, args...)
	}
	return w.trouble
}

// List implements Origin.
func (w *world) List(_ context.Context, r kv.Range) (kv.Page, error) {
	w.interfere()
	if w.failList--; w.failList == 0 {
		return kv.Page{}, errInjected
	}
	page, err := w.etcd.list(r)
	w.interfere()
	return page, err
}

// RequestProgress implements Feed.
func (w *world) RequestProgress(context.Context) error {
	w.deliver(w.etcd.now(), true)
	return nil
}

// Since implements Feed.
func (w *world) Since(_ context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	w.interfere()
	line := w.etcd
	if after < line.floor {
		w.compacted = true
		return &kv.CompactedError{Wanted: after, Oldest: line.floor}
	}
	if upTo > line.now() {
		return errInjected // the caller does not know of a restore yet
	}
	for _, e := range line.between(after, upTo) {
		if !strings.HasPrefix(e.Key, prefix) {
			continue
		}
		if w.failSince--; w.failSince == 0 {
			return errInjected
		}
		if err := yield(e); err != nil {
			return err
		}
		w.interfere()
	}
	return nil
}

// find wraps Options.Labels and Options.Fields: other steps are made while an index is
// built, but not while the cache is locked.
func (w *world) find(attributes func(*Entry) (Attributes, error)) func(*Entry) (Attributes, error) {
	return func(e *Entry) (Attributes, error) {
		if w.selecting != nil && w.depth == 0 && w.selecting.mu.TryLock() {
			w.selecting.mu.Unlock()
			w.interfere()
		}
		return attributes(e)
	}
}

// open is Options.Decrypt of a cache with SlowDecrypt; other steps are made meanwhile.
func (w *world) open(_ context.Context, _ string, stored []byte) ([]byte, bool, error) {
	if w.decrypting != nil && w.depth == 0 {
		w.interfere()
	}
	return stored, false, nil
}

// decrypt drains the queue of a cache down to the given number of batches.
func (w *world) decrypt(c *Cache, left int) {
	if w.decrypting != nil {
		return // there is one goroutine for each queue
	}
	w.decrypting = c
	for len(c.queue.batches) > left {
		c.decryptNext()
	}
	w.decrypting = nil
}

// complete returns the revision up to which a cache must have every change.
func (w *world) complete(c *Cache) int64 {
	if first, waiting := c.queue.first(); waiting {
		return min(w.space.Revision(), first-1)
	}
	return w.space.Revision()
}

// interfere makes other steps while the space waits for etcd or the log.
func (w *world) interfere() {
	if w.nested == nil || w.depth > 0 || w.nested.IntN(3) > 0 {
		return
	}
	w.depth++
	for range w.nested.IntN(4) {
		o := writing[w.nested.IntN(len(writing))]
		w.trace("    meanwhile %s", o.name)
		o.do(w, w.nested)
	}
	w.depth--
}

// deliver feeds the space up to a revision, and overwrites the borrowed events afterwards.
func (w *world) deliver(upTo int64, progress bool) {
	if upTo <= w.delivered {
		return
	}
	events := w.etcd.between(w.delivered, upTo)
	w.trace("    deliver %d..%d", w.delivered+1, upTo)
	w.delivered = upTo
	w.apply(kv.Batch{Events: events, Revision: upTo, Progress: progress && len(events) == 0})
}

func (w *world) apply(batch kv.Batch) {
	before := w.space.Revision()
	w.space.Apply(batch)
	if now := w.space.Revision(); now != max(before, batch.Revision) {
		_ = w.fault("revision %d after a batch up to %d", now, batch.Revision)
	}
	for _, e := range batch.Events {
		for i := range e.Value {
			e.Value[i] = '#'
		}
		for i := range e.Previous {
			e.Previous[i] = '#'
		}
	}
}

// reset resets the space, and notes what the watchers must observe.
func (w *world) reset(revision int64, replaced bool) {
	w.resets++
	w.delivered = revision
	if replaced && (revision >= w.space.Revision() || w.value%2 == 0) {
		w.space.Replace(revision)
	} else {
		w.space.Reset(revision)
	}
	for _, at := range w.watchers {
		switch {
		case replaced && at == w.reading:
			at.mustExpire = true
		case at == w.reading:
			at.mayExpire = true
		case replaced || at.revision < revision:
			at.mustExpire = !at.mayExpire || replaced
		}
	}
}

// mustKeep notes that a revision must stay readable; sure says that the cache had the
// changes since the snapshot.
func (w *world) mustKeep(h checkedSnapshot, sure bool) {
	if sure && h.epoch == h.cache.epoch && h.cache.pinned.limit > 1<<18 && h.cache.isLive() {
		w.pinned = append(w.pinned, pinnedRevision{h.cache, h.snapshot.Revision, h.epoch})
	}
}

func (w *world) readAt(c *Cache, revision int64) {
	s, ok := c.SnapshotAt(revision)
	if ok {
		if s.Revision != revision {
			_ = w.fault("SnapshotAt(%d) is at %d", revision, s.Revision)
		}
		w.checkSnapshot(s, c)
	}
}

// checkSnapshot compares a snapshot with the model, and remembers it.
func (w *world) checkSnapshot(s *Snapshot, c *Cache) checkedSnapshot {
	h := checkedSnapshot{snapshot: s, prefix: c.prefix, cache: c, epoch: c.epoch}
	if s.Revision > w.etcd.now() {
		_ = w.fault("%s: snapshot at %d, etcd is at %d", c.prefix, s.Revision, w.etcd.now())
		return h
	}
	h.want = w.etcd.states[s.Revision].below(c.prefix)
	_ = w.check(h)
	w.checked = append(w.checked, h)
	if len(w.checked) > 8 {
		w.checked = w.checked[1:]
	}
	return h
}

func (w *world) check(h checkedSnapshot) error {
	got := map[string]stored{}
	last := ""
	h.snapshot.Ascend("", func(e *Entry) bool {
		if e.Key <= last {
			_ = w.fault("%s comes after %s", e.Key, last)
		}
		last = e.Key
		got[e.Key] = stored{string(e.Data()), e.Revision}
		return true
	})
	if !maps.Equal(got, h.want) || h.snapshot.Len() != len(h.want) {
		return w.fault("snapshot of %s at %d has %v, want %v", h.prefix, h.snapshot.Revision, got, h.want)
	}
	return nil
}
