package bytecache

import (
	"context"
	"strings"
	"sync"

	"github.com/tidwall/btree"
)

// Options describe the stored values of a Cache.
type Options struct {
	// Decrypt decrypts a stored value, nil if values are not encrypted. stale is explained
	// at Entry. It is called without a lock.
	Decrypt func(ctx context.Context, key string, stored []byte) (data []byte, stale bool, err error)
	// SlowDecrypt says that Decrypt may block, because it asks a key management service.
	// The cache then decrypts its changes on its own goroutine, so that a hanging service
	// delays no other cache.
	SlowDecrypt bool
	// Labels returns the labels of an entry, Fields its selectable fields; nil if there are
	// none. They may be called with the cache's lock held, so they must not call the cache.
	Labels, Fields func(*Entry) (Attributes, error)
	// Label and Field return a single label or field where that is cheaper than all; has
	// reports whether the object has it. If known is false, the cache calls Labels or
	// Fields instead. They may be nil.
	Label, Field func(e *Entry, name string) (value string, has, known bool)
	// LabelFilter returns the filter of the labels of an object, given its bytes. ok is
	// false if that would take long. It may be nil.
	LabelFilter func(data []byte) (s LabelFilter, ok bool)
	// Group and Resource name the objects, for metrics.
	Group, Resource string
	// Indexes are built with the first load instead of with the second query. Their Values
	// are ignored.
	Indexes []Term
	// OnInconsistent is called when a change contradicts the cached state, which means that
	// an event was lost. The cache then reads its keys again. It is called with the cache's
	// lock held.
	OnInconsistent func(key string, revision int64)
}

// phase is the state of a cache.
type phase int

const (
	// idle: not needed yet, or the last load failed.
	idle phase = iota
	// loading: reading the keys, and collecting changes in pending.
	loading
	// live: following the log.
	live
)

// Cache holds the objects of one resource. It is safe for concurrent use.
type Cache struct {
	space *Space
	// users counts the calls of Space.Cache without a Release; guarded by space.mu.
	users   int
	prefix  string
	options Options
	// reads counts what is read.
	reads Reads

	// loadSem and historySem are semaphores: one goroutine loads, and one reads changes
	// from history that the log has discarded.
	loadSem, historySem chan struct{}
	// progress is that of the load under way.
	progress loadProgress

	mu    sync.Mutex
	phase phase // guarded by mu, as is all below
	// epoch counts the resets. Work that was begun in an older epoch is discarded.
	epoch int32
	// incarnation counts the replacements of etcd, after which revisions have another
	// meaning.
	incarnation int
	// resetRevision is the revision after which the event log continued at the last reset,
	// and resetEpoch the epoch that began with it.
	resetRevision int64
	resetEpoch    int32
	// pending are the changes received while loading, without the states before.
	pending []*Change
	// queue holds the changes that are not decrypted yet, if Options.SlowDecrypt.
	queue queue
	tree  *btree.BTreeG[*Entry]
	// pivot is the reusable search key for the tree.
	pivot Entry
	// changed is the revision of the last change, or of the load. The tree is the state at
	// every revision from changed up to the space's.
	changed int64
	log     changeLog
	// wakeups are the wakeups of the sleeping cursors.
	wakeups wakeups
	// snapshot is the snapshot at changed, nil until it is requested.
	snapshot *Snapshot
	pinned   pinnedSnapshots
	indexes  []*index
	// loads counts the loads, changes the changes that were applied.
	loads, changes int64
	// queries counts the queries of indexes.
	queries uint64
	// askedOnce are the terms without an index that were queried once, see WorthIndex.
	askedOnce []Term
	// treeBytes is the size of the entries in the tree.
	treeBytes int64
	// plain counts the compressible bytes, in tree and log, that are not compressed.
	plain int64
	// dictionary compresses entries, nil until it is needed; position is where the
	// compressor continues.
	dictionary *dictionary
	position   position
}

func newCache(space *Space, prefix string, o Options) *Cache {
	c := &Cache{
		space: space, prefix: prefix, options: o,
		loadSem: make(chan struct{}, 1), historySem: make(chan struct{}, 1),
		tree:   newTree(),
		log:    changeLog{budget: &space.logs},
		pinned: pinnedSnapshots{limit: space.config.SnapshotBytes},
	}
	return c
}

func newTree() *btree.BTreeG[*Entry] {
	return btree.NewBTreeGOptions(func(a, b *Entry) bool { return a.Key < b.Key }, btree.Options{NoLocks: true})
}

// Prefix returns the prefix of all keys of this cache.
func (c *Cache) Prefix() string { return c.prefix }

// Space returns the key space of the cache.
func (c *Cache) Space() *Space { return c.space }

// Get returns the entry of a key, nil if there is none, and the revision of that answer. It
// loads the cache first if necessary.
func (c *Cache) Get(ctx context.Context, key string) (*Entry, int64, error) {
	if err := c.lockLive(ctx); err != nil {
		return nil, 0, err
	}
	defer c.mu.Unlock()
	return c.getLocked(key), c.revisionLocked(), nil
}

// lockLive locks mu while the cache is live, and loads it first if necessary. If it returns
// an error, mu is not locked.
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

// Peek is Get without loading: ok is false if the cache is not live.
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

// Revision returns the newest complete revision of the cache. It is behind the revision of
// the space while changes are being decrypted.
func (c *Cache) Revision() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revisionLocked()
}

// revisionLocked returns the newest revision of the tree. It reads the revision of the
// space first, which is never ahead of this cache except for queued changes.
func (c *Cache) revisionLocked() int64 {
	revision := c.space.revision.Load()
	if first, waiting := c.queue.first(); waiting {
		revision = min(revision, first-1)
	}
	return max(revision, c.changed)
}

// Count returns the number of objects whose keys begin with prefix, without loading: ok is
// false if the cache is not live.
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
