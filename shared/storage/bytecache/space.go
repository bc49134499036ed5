package bytecache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"triune.dev/shared/storage/kv"
)

// Origin is the etcd that a Space copies. It is safe for concurrent use.
type Origin interface {
	// List reads a range of keys; see kv.Client for its errors.
	List(ctx context.Context, r kv.Range) (kv.Page, error)
}

// Feed is the event log that feeds a Space. It is safe for concurrent use.
type Feed interface {
	// RequestProgress asks the log to report its revision by a call of Apply.
	RequestProgress(ctx context.Context) error
	// Since yields the events of the keys below prefix, in order, after one revision and up
	// to another. An error of yield ends the call and is returned. It fails with a
	// *kv.CompactedError if that history is gone. The caller may retain the events,
	// including their previous values.
	Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error
}

// Config configures a Space. Zero limits mean their defaults.
type Config struct {
	Origin Origin
	Feed   Feed
	// LogBytes bounds the changes in the logs of all resources together, by the
	// uncompressed size of the states that only the logs retain; by default
	// DefaultLogBytes. The oldest changes are dropped first.
	LogBytes int64
	// SnapshotBytes bounds the snapshots that each resource pins for the pages of LISTs in
	// progress; by default 32 MiB.
	SnapshotBytes int64
	// HistoryBytes bounds the cached history of all resources together, which is read when
	// the logs have dropped changes that a cursor needs; by default 32 MiB.
	HistoryBytes int64
	// FormBytes bounds the derived forms of all entries and changes; by default 64 MiB.
	FormBytes int64
	// PlainBytes bounds the uncompressed stored bytes of all resources and their logs
	// together. Beyond it, RunCompressor compresses the entries that were not read
	// recently. By default 64 MiB; nothing is compressed if it is negative.
	PlainBytes int64
}

// Space is the cached key space of one etcd. It is safe for concurrent use, except that
// Apply, Reset and Replace must be called by one goroutine.
type Space struct {
	config Config
	budget *Budget
	// windows caches the history that was read recently.
	windows windows
	logs    logBudget
	// The next three limits are changed by tests only.
	loadPage      int64
	historyBytes  int64
	historyEvents int

	// revision is complete in every cache.
	revision atomic.Int64

	// plain is the sum of the caches' plain counters. The compressor is woken when it
	// exceeds trigger.
	plain, trigger atomic.Int64
	// plainAdded is the total of new bytes ever counted in plain, without entries that were
	// only decompressed.
	plainAdded atomic.Int64
	// roomWanted is set when an entry that is read repeatedly found no room to be stored
	// uncompressed.
	roomWanted atomic.Bool
	// garbageLeft is set when compression has produced garbage.
	garbageLeft atomic.Bool
	// compressWake wakes the compressor.
	compressWake chan struct{}
	// compressAt is the prefix of the cache at which the compressor continues. Only
	// RunCompressor uses it.
	compressAt string

	mu sync.Mutex
	// begun is set by the first Reset. Guarded by mu, as are all fields below.
	begun bool
	// caches is sorted by prefix.
	caches  []*Cache
	waiters []waiter
	// started is closed when begun is set.
	started chan struct{}
}

// New returns an empty Space. It is usable after the first Reset.
func New(c Config) *Space {
	if c.LogBytes == 0 {
		c.LogBytes = DefaultLogBytes
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 32 << 20
	}
	if c.HistoryBytes == 0 {
		c.HistoryBytes = 32 << 20
	}
	if c.FormBytes == 0 {
		c.FormBytes = 64 << 20
	}
	if c.PlainBytes == 0 {
		c.PlainBytes = DefaultPlainBytes
	}
	s := &Space{
		compressWake: make(chan struct{}, 1),
		config:       c, budget: NewBudget(c.FormBytes), started: make(chan struct{}),
		loadPage: loadPage, historyBytes: historyBytes, historyEvents: historyEvents,
	}
	s.windows.limit = c.HistoryBytes
	s.logs.limit, s.logs.perCache, s.logs.retention = c.LogBytes, min(retainedLogBytes, c.LogBytes), logRetention
	s.trigger.Store(c.PlainBytes)
	if !s.compresses() {
		s.trigger.Store(math.MaxInt64)
	}
	return s
}

// DefaultPlainBytes is the default of Config.PlainBytes.
const DefaultPlainBytes = 64 << 20

// Budget returns the budget of the derived forms of this space.
func (s *Space) Budget() *Budget { return s.budget }

// Revision returns the newest revision that is complete in every cache, 0 before the event
// log has started.
func (s *Space) Revision() int64 { return s.revision.Load() }

// Cache returns the cache of the keys below prefix. The prefix ends with a slash and must
// not contain, or be contained in, the prefix of another cache. Calls with the same prefix
// return the same cache, with the options of the first call. The caller must call Release
// when it no longer needs the cache.
func (s *Space) Cache(prefix string, o Options) (*Cache, error) {
	if !strings.HasSuffix(prefix, "/") {
		return nil, fmt.Errorf("byte cache: prefix %q does not end with a slash", prefix)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := sort.Search(len(s.caches), func(i int) bool { return s.caches[i].prefix >= prefix })
	if at < len(s.caches) && s.caches[at].prefix == prefix {
		s.caches[at].users++
		return s.caches[at], nil
	}
	for _, near := range []int{at - 1, at} {
		if near < 0 || near >= len(s.caches) {
			continue
		}
		if other := s.caches[near].prefix; strings.HasPrefix(other, prefix) || strings.HasPrefix(prefix, other) {
			return nil, fmt.Errorf("byte cache: prefix %q overlaps %q", prefix, other)
		}
	}
	c := newCache(s, prefix, o)
	c.users = 1
	s.caches = slices.Insert(s.caches, at, c)
	return c, nil
}

// Release undoes one call of Space.Cache. After the last one the space drops the cache and
// its cursors end.
func (c *Cache) Release() {
	s := c.space
	s.mu.Lock()
	c.users--
	if c.users > 0 {
		s.mu.Unlock()
		return
	}
	s.caches = slices.DeleteFunc(s.caches, func(other *Cache) bool { return other == c })
	wakeups := c.reset(s.revision.Load(), true)
	s.mu.Unlock()
	fireAll(wakeups)
}

// Each calls visit for every cache.
func (s *Space) Each(visit func(*Cache)) {
	s.mu.Lock()
	all := slices.Clone(s.caches)
	s.mu.Unlock()
	for _, c := range all {
		visit(c)
	}
}

// cacheForLocked returns the cache that owns a key, nil if there is none.
func (s *Space) cacheForLocked(key string) *Cache {
	at := sort.Search(len(s.caches), func(i int) bool { return s.caches[i].prefix > key })
	if at == 0 || !strings.HasPrefix(key, s.caches[at-1].prefix) {
		return nil
	}
	return s.caches[at-1]
}

// Apply takes the next batch of the event log: complete revisions, without gaps. Revisions
// that were already applied are skipped. All caches have the changes before Revision
// reports them.
func (s *Space) Apply(batch kv.Batch) {
	fireAll(s.apply(batch))
}

// apply holds mu throughout, so that a cache that starts to load sees either all of the
// batch or nothing. It returns the wakeups to fire.
func (s *Space) apply(batch kv.Batch) []*wakeup {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.revision.Load()
	if batch.Revision <= known {
		return nil
	}
	events := batch.Events
	for len(events) > 0 && events[0].Revision <= known {
		events = events[1:]
	}
	var wakeups []*wakeup
	for _, g := range s.splitLocked(events) {
		wakeups = append(wakeups, g.cache.receive(g.events, batch.Revision)...)
	}
	s.trimLogsLocked(time.Now())
	s.advanceLocked(batch.Revision)
	return wakeups
}

// cacheEvents are the events of a batch that belong to one cache.
type cacheEvents struct {
	cache  *Cache
	events []kv.Event
}

// splitLocked groups events by cache, each group in order. A cache must see a revision as a
// whole, and an expired lease deletes keys of many resources at one revision.
func (s *Space) splitLocked(events []kv.Event) []cacheEvents {
	var split []cacheEvents
	for len(events) > 0 {
		cache := s.cacheForLocked(events[0].Key)
		run := 1
		for run < len(events) && s.cacheForLocked(events[run].Key) == cache {
			run++
		}
		if cache != nil {
			at := slices.IndexFunc(split, func(e cacheEvents) bool { return e.cache == cache })
			if at < 0 {
				split = append(split, cacheEvents{cache: cache, events: events[:run:run]})
			} else {
				split[at].events = append(split[at].events, events[:run]...)
			}
		}
		events = events[run:]
	}
	return split
}

// Reset says that the event log continues after revision, with a gap since the last batch.
// Every cache reads its keys again. Cursors that have read up to revision continue, the
// others end with an ExpiredError. A revision before the last batch means that etcd was
// replaced by an older copy, see Replace.
func (s *Space) Reset(revision int64) { s.reset(revision, false) }

// Replace is Reset for an etcd that was replaced, for example by a restored backup: the
// same revision may have another meaning now, so every cursor ends.
func (s *Space) Replace(revision int64) { s.reset(revision, true) }

func (s *Space) reset(revision int64, replaced bool) {
	var wakeups []*wakeup
	defer func() { fireAll(wakeups) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	replaced = replaced || revision < s.revision.Load()
	for _, c := range s.caches {
		wakeups = append(wakeups, c.reset(revision, replaced)...)
	}
	if !s.begun {
		s.begun = true
		close(s.started)
	}
	s.advanceLocked(revision)
}

// advanceLocked may also move backward, to the revision of a restored etcd.
func (s *Space) advanceLocked(revision int64) {
	s.revision.Store(revision)
	s.waiters = slices.DeleteFunc(s.waiters, func(w waiter) bool {
		if w.revision > revision {
			return false
		}
		close(w.done)
		return true
	})
}

// ExpiredError says that the changes after revision Wanted are lost: neither the cache nor
// the event log nor etcd has them. Oldest is the oldest revision after which changes are
// known. The response to clients is 410 Expired.
type ExpiredError struct {
	Wanted, Oldest int64
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("changes after revision %d are gone (oldest known %d)", e.Wanted, e.Oldest)
}

// expired translates the Feed's error for missing history into an ExpiredError.
func expired(err error, wanted, oldest int64) error {
	var compacted *kv.CompactedError
	if errors.As(err, &compacted) {
		return &ExpiredError{Wanted: wanted, Oldest: max(oldest, compacted.Oldest)}
	}
	return err
}
