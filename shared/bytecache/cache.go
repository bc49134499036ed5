package bytecache

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"triune.dev/shared/etcdstore/kv"
)

// Options say how a Cache understands what is stored.
type Options struct {
	// Open decrypts a stored value; nil where nothing is encrypted. stale is as in
	// Entry. It is called without a lock.
	Open func(ctx context.Context, key string, stored []byte) (data []byte, stale bool, err error)
	// Slow says that Open may take long, because it asks a key management service. The
	// cache then decrypts its changes on a goroutine of its own, so that it alone is
	// late when that service hangs.
	Slow bool
	// Labels finds out the labels of an entry, Fields its selectable fields; nil
	// where there are none. They may be called with the cache's lock held, so they
	// must not call it.
	Labels, Fields func(*Entry) (Attributes, error)
	// Label and Field find out one of them where that takes less than all: has tells
	// whether the object has it. known is false where they cannot, and Labels or Fields is
	// to be asked. nil if they never can.
	Label, Field func(e *Entry, name string) (value string, has, known bool)
	// Sketch finds out that of the labels of an object, from its bytes, as it comes; nil, or
	// ok is false, where that would take long.
	Sketch func(data []byte) (s Sketch, ok bool)
	// Indexes are kept from the load on, not only from the second query on. Their Values
	// mean nothing.
	Indexes []Term
	// OnInconsistent is called when a change does not fit what is cached, which
	// means that an event was lost. The cache then reads its keys again. It is
	// called with the cache's lock held.
	OnInconsistent func(key string, revision int64)
}

// phase is how far a cache is.
type phase int

const (
	// idle: nobody has needed it yet, or the last attempt to load it failed.
	idle phase = iota
	// loading: reading its keys; changes are put aside.
	loading
	// live: follows the log.
	live
)

// Cache is the objects of one resource. It is safe for concurrent use.
type Cache struct {
	space *Space
	// users have not released it yet; guarded by space.mu.
	users   int
	prefix  string
	options Options

	// loadTurn is held by the one that loads, historyTurn by the one that reads what
	// the log has forgotten.
	loadTurn, historyTurn chan struct{}

	mu    sync.Mutex
	phase phase // guarded by mu, as is all below
	// era counts the resets, so that what was begun before one is thrown away.
	era int32
	// history counts the resets after which etcd is another one, whose revisions
	// mean something else.
	history int
	// resetAt is the revision after which the event log went on at the last reset, and
	// resetEra the era that began with it.
	resetAt  int64
	resetEra int32
	// aside are the changes that came while loading, without the states before.
	aside []*Change
	// queue are the changes that are not yet decrypted, if Options.Slow.
	queue queue
	tree  *btree.BTreeG[*Entry]
	// pivot is what the tree is searched with.
	pivot Entry
	// changed is the revision of the last change, or of the load; the tree is the
	// state at every revision from it to the space's.
	changed int64
	log     changeLog
	// alarms are what cursors sleep on while there is nothing to read for them.
	alarms alarms
	// snapshot is the one at changed, if somebody has asked for it.
	snapshot *Snapshot
	kept     keptSnapshots
	indexes  []*index
	// asked counts the queries of indexes.
	asked uint64
	// once are the terms that were asked for and have no index, see Recurs.
	once []Term
	// stored is the size of what the tree holds.
	stored int64
	// plain are the bytes, in the tree and the log, that could be compressed and are
	// not.
	plain int64
	// press compresses, nil until there is something to compress; hand is where the
	// packer has been.
	press *press
	hand  hand
}

func newCache(space *Space, prefix string, o Options) *Cache {
	c := &Cache{
		space: space, prefix: prefix, options: o,
		loadTurn: make(chan struct{}, 1), historyTurn: make(chan struct{}, 1),
		tree: newTree(),
		log:  changeLog{budget: &space.logs},
		kept: keptSnapshots{limit: space.config.SnapshotBytes},
	}
	return c
}

func newTree() *btree.BTreeG[*Entry] {
	return btree.NewBTreeGOptions(func(a, b *Entry) bool { return a.Key < b.Key }, btree.Options{NoLocks: true})
}

// Prefix is what all keys of this cache begin with.
func (c *Cache) Prefix() string { return c.prefix }

// Space is the key space that the cache belongs to.
func (c *Cache) Space() *Space { return c.space }

// Get returns the entry of a key, nil if there is none, and the revision at which
// that is true. It loads the cache first if need be.
func (c *Cache) Get(ctx context.Context, key string) (*Entry, int64, error) {
	if err := c.lockLive(ctx); err != nil {
		return nil, 0, err
	}
	defer c.mu.Unlock()
	return c.getLocked(key), c.revisionLocked(), nil
}

// lockLive locks mu at a moment at which the cache is live, and loads it first if
// need be. If it fails, mu is not locked.
func (c *Cache) lockLive(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.phase == live {
			return nil
		}
		c.mu.Unlock()
		if err := c.Load(ctx); err != nil {
			return err
		}
	}
}

// Peek is Get without loading: ok is false while nothing is known.
func (c *Cache) Peek(key string) (entry *Entry, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live {
		return nil, false
	}
	return c.getLocked(key), true
}

func (c *Cache) getLocked(key string) *Entry {
	c.pivot.Key = key
	entry, _ := c.tree.Get(&c.pivot)
	return entry
}

// Revision is the newest one at which the cache is complete. It is behind the space's
// while changes are being decrypted.
func (c *Cache) Revision() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revisionLocked()
}

// revisionLocked is the newest one at which the tree is true. The space's is read
// first: it never runs ahead of this cache, but for what waits in the queue.
func (c *Cache) revisionLocked() int64 {
	revision := c.space.revision.Load()
	if first, waiting := c.queue.first(); waiting {
		revision = min(revision, first-1)
	}
	return max(revision, c.changed)
}

// take is called by the space, with its lock held, for events of complete
// revisions up to revision. It returns the alarms to ring.
func (c *Cache) take(events []kv.Event, revision int64) []*alarm {
	if c.options.Slow {
		return c.enqueue(events)
	}
	return c.follow(c.prepare(context.Background(), events, lent), revision)
}

// follow applies prepared changes of complete revisions up to revision. It returns the
// alarms to ring.
func (c *Cache) follow(changes []*Change, revision int64) []*alarm {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applyLocked(changes, revision)
}

func (c *Cache) applyLocked(changes []*Change, revision int64) []*alarm {
	switch c.phase {
	case loading:
		c.aside = append(c.aside, changes...)
	case live:
		followed, ok := c.followLocked(changes)
		if ok {
			return c.rouseLocked(followed)
		}
		return c.restartLocked(revision, false)
	}
	return nil
}

// ownership says whose the bytes of events are.
type ownership bool

const (
	// lent: they are parts of the event log's buffers, which are not to be kept.
	lent ownership = false
	// owned: they may be kept.
	owned ownership = true
)

// prepare does without the lock what can be done without it: copying, decrypting,
// and finding out what the indexes will ask for.
func (c *Cache) prepare(ctx context.Context, events []kv.Event, bytesAre ownership) []*Change {
	c.mu.Lock()
	// A cache that is idle loads what has come before its next change is taken.
	unwanted := c.phase == idle
	labels, fields := false, len(c.alarms.fields) > 0
	for _, ix := range c.indexes {
		labels, fields = labels || !ix.field, fields || ix.field
	}
	var before []*Entry
	if len(c.alarms.fields) > 0 {
		before = c.knownLocked(events)
	}
	c.mu.Unlock()
	for _, e := range before {
		_, _ = c.FieldsOf(e)
	}
	if unwanted {
		return nil
	}
	changes := make([]*Change, len(events))
	for i, e := range events {
		if bytesAre == lent {
			e = copied(e)
		}
		change := &Change{Kind: e.Kind, Key: e.Key, Revision: e.Revision}
		changes[i] = change
		if e.Kind == kv.Deleted {
			continue
		}
		change.Now = c.entry(ctx, e.Key, e.Value, e.Revision)
		if labels {
			_, _ = c.LabelsOf(change.Now) // an error comes again when it is asked for
		}
		if fields {
			_, _ = c.FieldsOf(change.Now)
		}
	}
	return changes
}

// copied copies what is kept of an event. Its key may be a part of the event log's buffers;
// that of an object which exists is held already.
func copied(e kv.Event) kv.Event {
	if e.Kind == kv.Created {
		e.Key = strings.Clone(e.Key)
	}
	e.Value = bytes.Clone(e.Value)
	return e
}

// knownLocked returns the entries that events are about, as far as there are any.
func (c *Cache) knownLocked(events []kv.Event) (known []*Entry) {
	for _, e := range events {
		if entry := c.getLocked(e.Key); entry != nil {
			known = append(known, entry)
		}
	}
	return known
}

// followLocked applies changes that come after what the tree has, and returns those
// that did. ok is false if one of them does not fit.
func (c *Cache) followLocked(changes []*Change) (followed []*Change, ok bool) {
	for len(changes) > 0 && changes[0].Revision <= c.changed {
		changes = changes[1:] // the load has seen it
	}
	if len(changes) == 0 {
		return nil, true
	}
	c.retireSnapshotLocked(changes[0].Revision)
	for _, change := range changes {
		if change.Kind == kv.Deleted {
			c.pivot.Key = change.Key
			change.Before, _ = c.tree.Delete(&c.pivot)
		} else {
			change.Before, _ = c.tree.Set(change.Now)
		}
		if (change.Before == nil) != (change.Kind == kv.Created) {
			if c.options.OnInconsistent != nil {
				c.options.OnInconsistent(change.Key, change.Revision)
			}
			return nil, false
		}
		if change.Before != nil {
			c.stored -= change.Before.size()
			c.kept.replace(change.Before.size())
			// Its key is the same string as before: keep one.
			change.Key = change.Before.Key
		}
		if change.Now != nil {
			change.Now.Key = change.Key
			c.stored += change.Now.size()
			c.adoptEntryLocked(change.Now)
		}
		c.followIndexesLocked(change)
	}
	c.changed = changes[len(changes)-1].Revision
	c.log.append(time.Now(), changes...)
	if c.space.plain.Load() > c.space.trigger.Load() {
		c.space.callPacker()
	}
	return changes, true
}

// forgetLocked is called for a change that the log no longer has: the state before it
// was kept for the log alone.
func (c *Cache) forgetLocked(change *Change) {
	c.releaseEntryLocked(change.Before)
}

// entry makes the entry of a stored value, which it keeps.
func (c *Cache) entry(ctx context.Context, key string, stored []byte, revision int64) *Entry {
	e := &Entry{Key: key, Revision: revision}
	data := stored
	if c.options.Open != nil {
		data, e.Stale, e.Err = c.options.Open(ctx, key, stored)
	}
	if e.Err != nil {
		e.Err = &sealedError{e.Err, stored}
	}
	e.hold(data)
	if c.options.Sketch != nil && e.Err == nil {
		if sketch, ok := c.options.Sketch(data); ok {
			e.absent = ^sketch
		}
	}
	return e
}

// restart is called by the space when its log cannot tell what has happened. It
// returns the alarms to ring when no lock is held.
func (c *Cache) restart(revision int64, replaced bool) []*alarm {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restartLocked(revision, replaced)
}

// restartLocked forgets everything, and what happened between the last change and
// revision is not known. It returns the alarms to ring, which are those of all cursors
// that sleep. replaced: etcd is another one, and no cursor goes on.
func (c *Cache) restartLocked(revision int64, replaced bool) []*alarm {
	if replaced {
		c.history++
	}
	c.resetAt, c.resetEra = revision, c.era+1
	return c.emptyLocked()
}

// emptyLocked forgets everything; the next one who needs it loads it again. It returns
// the alarms to ring.
func (c *Cache) emptyLocked() []*alarm {
	// Whoever sleeps has missed nothing up to now.
	roused := c.alarms.rouseEvery(nil, "", place{c.revisionLocked(), c.log.end, c.log.section})
	c.era++
	c.phase = idle
	c.aside = nil
	c.queue.clear()
	c.space.windows.drop(c)
	c.tree, c.stored = newTree(), 0
	c.pivot.Key = ""
	c.snapshot = nil
	c.kept.restart()
	c.indexes, c.once = nil, nil
	c.changed = 0
	c.log.restart(c.resetAt)
	c.countLocked(-c.plain)
	c.press, c.hand = nil, hand{}
	return roused
}

// Count returns the number of objects whose keys begin with prefix, without
// loading: ok is false while nothing is known.
func (c *Cache) Count(prefix string) (count int, ok bool) {
	c.mu.Lock()
	if c.phase != live {
		c.mu.Unlock()
		return 0, false
	}
	if prefix == c.prefix {
		defer c.mu.Unlock()
		return c.tree.Len(), true
	}
	snapshot := c.snapshotLocked()
	c.mu.Unlock()
	snapshot.Ascend(prefix, func(e *Entry) bool {
		if !strings.HasPrefix(e.Key, prefix) {
			return false
		}
		count++
		return true
	})
	return count, true
}

// Stats are figures about a cache.
type Stats struct {
	Live bool
	// Objects and Bytes are what the tree holds.
	Objects int
	Bytes   int64
	// Plain are the stored bytes, of the log, too, that are held as they are and
	// could be held compressed.
	Plain int64
	// LogChanges and LogBytes are what the log remembers; LogFloor is the revision
	// after which it knows every change.
	LogChanges int
	LogBytes   int64
	LogFloor   int64
	// Kept is how many states are remembered for the pages of LISTs, KeptBytes the
	// most that they keep alive by themselves.
	Kept      int
	KeptBytes int64
}

// Stats returns the figures of now.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Live: c.phase == live, Objects: c.tree.Len(), Bytes: c.stored, Plain: c.plain,
		LogChanges: c.log.length(), LogBytes: c.log.bytes, LogFloor: c.log.floor,
		Kept: len(c.kept.list), KeptBytes: c.kept.held(),
	}
}
