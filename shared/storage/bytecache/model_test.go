package bytecache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/storage/kv"
)

// stored is the value of a key, and its mod revision.
type stored struct {
	value    string
	revision int64
}

// state is all keys at one revision.
type state map[string]stored

// below returns the keys with a prefix.
func (s state) below(prefix string) map[string]stored {
	out := map[string]stored{}
	for key, at := range s {
		if strings.HasPrefix(key, prefix) {
			out[key] = at
		}
	}
	return out
}

// timeline is the reference model: every state of an etcd, by revision. A restored backup
// is another timeline.
type timeline struct {
	states []state
	events [][]kv.Event
	// etcd cannot be read before compacted; the event log has no history after a revision
	// before floor.
	compacted, floor int64
}

func newTimeline() *timeline {
	return &timeline{states: []state{{}, {}}, events: [][]kv.Event{nil, nil}, compacted: 1}
}

func (l *timeline) now() int64 { return int64(len(l.states)) - 1 }

// backup returns a copy of the timeline up to a revision.
func (l *timeline) backup(revision int64) *timeline {
	return &timeline{
		states: slices.Clone(l.states[:revision+1]), events: slices.Clone(l.events[:revision+1]),
		compacted: min(l.compacted, revision), floor: min(l.floor, revision),
	}
}

// commit makes one revision of writes; "" deletes a key.
func (l *timeline) commit(writes map[string]string) {
	next := maps.Clone(l.states[l.now()])
	revision := l.now() + 1
	var events []kv.Event
	for _, key := range slices.Sorted(maps.Keys(writes)) {
		before, existed := next[key]
		e := kv.Event{Key: key, Revision: revision, Kind: kv.Created}
		if existed {
			e.Kind, e.Previous = kv.Modified, []byte(before.value)
		}
		if value := writes[key]; value != "" {
			e.Value = []byte(value)
			next[key] = stored{value, revision}
		} else {
			if !existed {
				continue
			}
			e.Kind = kv.Deleted
			delete(next, key)
		}
		events = append(events, e)
	}
	if len(events) > 0 {
		l.states, l.events = append(l.states, next), append(l.events, events)
	}
}

// between returns copies of the events after one revision and up to another.
func (l *timeline) between(after, upTo int64) []kv.Event {
	var out []kv.Event
	for _, events := range l.events[after+1 : upTo+1] {
		for _, e := range events {
			e.Value, e.Previous = slices.Clone(e.Value), slices.Clone(e.Previous)
			out = append(out, e)
		}
	}
	return out
}

// list answers a read as etcd does.
func (l *timeline) list(r kv.Range) (kv.Page, error) {
	at := r.Revision
	switch {
	case at == 0:
		at = l.now()
	case at > l.now():
		return kv.Page{}, rpctypes.ErrFutureRev
	case at < l.compacted:
		return kv.Page{}, rpctypes.ErrCompacted
	}
	page := kv.Page{Revision: l.now()}
	for _, key := range slices.Sorted(maps.Keys(l.states[at])) {
		if key < r.Start || key >= r.End {
			continue
		}
		page.Count++
		if r.Limit == 0 || int64(len(page.KVs)) < r.Limit {
			item := l.states[at][key]
			page.KVs = append(page.KVs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(item.value), ModRevision: item.revision})
		}
	}
	return page, nil
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

// operation is a kind of step.
type operation struct {
	name   string
	weight int
	do     func(*world, *rand.Rand)
}

// writing are the steps that are not reads.
var writing = []operation{
	{"write", 14, func(w *world, r *rand.Rand) {
		for range 1 + r.IntN(4) {
			w.write(r, 1)
		}
	}},
	{"write several keys at one revision", 3, func(w *world, r *rand.Rand) { w.write(r, 2+r.IntN(6)) }},
	{"lease expires", 2, func(w *world, r *rand.Rand) {
		gone := map[string]string{}
		for key := range w.etcd.states[w.etcd.now()] {
			gone[key] = ""
		}
		keys := slices.Sorted(maps.Keys(gone))
		for _, key := range keys {
			if r.IntN(2) == 0 {
				delete(gone, key)
			}
		}
		w.etcd.commit(gone)
	}},
	{"deliver", 14, func(w *world, r *rand.Rand) {
		for range 1 + r.IntN(3) {
			w.deliver(min(w.etcd.now(), w.delivered+1+r.Int64N(4)), false)
		}
	}},
	{"deliver all, with progress", 4, func(w *world, _ *rand.Rand) { w.deliver(w.etcd.now(), true) }},
	{"decrypt", 10, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		w.decrypt(c, max(0, len(c.queue.batches)-1-r.IntN(4)))
	}},
	{"deliver again", 2, func(w *world, r *rand.Rand) {
		// Batches overlap after the log has changed its source.
		from := r.Int64N(w.delivered + 1)
		upTo := from + r.Int64N(w.etcd.now()-from+1)
		w.apply(kv.Batch{Events: w.etcd.between(from, upTo), Revision: upTo})
		w.delivered = max(w.delivered, upTo)
	}},
	{"reset", 1, func(w *world, r *rand.Rand) {
		revision := w.delivered + r.Int64N(w.etcd.now()-w.delivered+1)
		if r.IntN(2) == 0 {
			w.etcd.floor = max(w.etcd.floor, revision)
		}
		w.trace("    reset to %d", revision)
		w.reset(revision, false)
	}},
	{"restore a backup", 1, func(w *world, r *rand.Rand) {
		w.etcd = w.etcd.backup(max(1, w.etcd.now()-r.Int64N(12)))
		from := w.etcd.now()
		for range r.IntN(12) {
			w.write(r, 1)
		}
		revision := from + r.Int64N(w.etcd.now()-from+1)
		w.trace("    restored at %d, goes on after %d", from, revision)
		w.reset(revision, true)
	}},
	{"compact", 1, func(w *world, r *rand.Rand) {
		w.etcd.compacted = max(w.etcd.compacted, w.etcd.now()-r.Int64N(8))
		if r.IntN(2) == 0 {
			w.etcd.floor = max(w.etcd.floor, w.etcd.compacted-r.Int64N(10))
		}
	}},
	{"compress", 2, func(w *world, r *rand.Rand) {
		if !w.space.compresses() {
			return
		}
		p := pass{space: w.space, target: r.Int64N(2 * modelPlain), rounds: 1 + r.IntN(2)}
		if err := p.run(context.Background()); err != nil {
			_ = w.fault("compress: %v", err)
		}
	}},
	{"keep what was read", 2, func(w *world, r *rand.Rand) {
		if len(w.checked) > 0 {
			h := w.checked[r.IntN(len(w.checked))]
			h.cache.Pin(h.snapshot)
			w.mustKeep(h, h.cache.log.budget.limit > 1<<18)
		}
	}},
	{"read at a revision", 4, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		w.readAt(c, r.Int64N(w.etcd.now()+2))
	}},
}

func (w *world) write(r *rand.Rand, keys int) {
	writes := map[string]string{}
	for range keys {
		key := modelKey(r)
		if r.IntN(4) == 0 {
			writes[key] = ""
			continue
		}
		w.value++
		padding := r.IntN(200)
		if r.IntN(4) == 0 {
			padding += minCompressBytes
		}
		writes[key] = fmt.Sprintf("%s|%d|%s", modelLabels[r.IntN(len(modelLabels))], w.value, strings.Repeat("p", padding))
	}
	w.etcd.commit(writes)
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
