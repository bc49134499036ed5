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

	"triune.dev/shared/etcdstore/kv"
)

// Origin is the etcd that a Space is a copy of. It is safe for concurrent use.
type Origin interface {
	// List reads a range of keys; kv.Client explains it and its errors.
	List(ctx context.Context, r kv.Range) (kv.Page, error)
}

// Feed is what a Space asks of the event log that it is fed by. It is safe for
// concurrent use.
type Feed interface {
	// RequestProgress asks the log to say how far it is. The answer comes to Apply.
	RequestProgress(ctx context.Context) error
	// Since yields, in order, the events of the keys below a prefix after one
	// revision and up to another; yield's error ends it and is returned. It fails
	// with a *kv.CompactedError where that history is gone. The events, with their
	// previous values, are the caller's to keep.
	Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error
}

// Config says what a Space is a copy of, and how much it may hold. The zero value
// of a limit means its default.
type Config struct {
	Origin Origin
	Feed   Feed
	// LogBytes bounds the changes that all resources together remember, by the bytes of
	// the states that only the logs hold, before these are compressed; DefaultLogBytes by
	// default. The oldest are forgotten first.
	LogBytes int64
	// SnapshotBytes bounds what each resource keeps for the pages of LISTs that
	// have begun; 32 MiB by default.
	SnapshotBytes int64
	// HistoryBytes bounds what is remembered, for all resources together, of history that
	// the logs have forgotten and somebody has read; 32 MiB by default.
	HistoryBytes int64
	// FormBytes bounds everything that is derived from all entries; 64 MiB by
	// default.
	FormBytes int64
	// PlainBytes bounds the stored bytes of all resources together, and of their
	// logs, that are held as they are; beyond it, what was not read lately is held
	// compressed, if Pack runs. 64 MiB by default; below 0 nothing is compressed.
	PlainBytes int64
}

// Space is the key space of one etcd in this process. It is safe for concurrent
// use, except that Apply, Reset and Replace are called by one goroutine.
type Space struct {
	config Config
	budget *Budget
	// windows is the history that was read last.
	windows windows
	logs    logBudget
	// Bounds that only tests change.
	loadPage      int64
	historyBytes  int64
	historyEvents int

	// revision is complete in every cache.
	revision atomic.Int64

	// plain sums up what its caches count; beyond trigger the packer is called.
	plain, trigger atomic.Int64
	// added is how much has ever come that plain counts; what only changes how it is
	// held does not.
	added atomic.Int64
	// wanted: there was no room for something that is read again and again.
	wanted atomic.Bool
	// left: compressing has left something to the collector.
	left atomic.Bool
	// packer is how Pack is woken.
	packer chan struct{}
	// hand is the prefix of the cache that Pack was at last. Only Pack uses it.
	hand string

	mu sync.Mutex
	// begun: Reset has been called once. Guarded by mu, as is all below.
	begun bool
	// caches by prefix, in order.
	caches  []*Cache
	waiters []waiter
	// started is closed when begun is set.
	started chan struct{}
}

// New makes a Space. It knows nothing until Reset and Apply are called.
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
		packer: make(chan struct{}, 1),
		config: c, budget: NewBudget(c.FormBytes), started: make(chan struct{}),
		loadPage: loadPage, historyBytes: historyBytes, historyEvents: historyEvents,
	}
	s.windows.limit = c.HistoryBytes
	s.logs.limit, s.logs.share, s.logs.fresh = c.LogBytes, min(logShare, c.LogBytes), logFresh
	s.trigger.Store(c.PlainBytes)
	if !s.packs() {
		s.trigger.Store(math.MaxInt64)
	}
	return s
}

// DefaultPlainBytes is the default of Config.PlainBytes.
const DefaultPlainBytes = 64 << 20

// Budget bounds the derived forms of everything in this space.
func (s *Space) Budget() *Budget { return s.budget }

// Revision is the newest revision that is complete in every cache, 0 before the
// event log has said anything.
func (s *Space) Revision() int64 { return s.revision.Load() }

// Cache returns the cache of the keys below prefix, which ends with a slash and
// neither contains nor is contained in another one's: the same cache for the same
// prefix, with the options of the first call. Each call is to be followed by one of
// Release when the cache is no longer needed.
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

// Release gives back what Space.Cache returned. After the last user's, the space feeds
// the cache no more and forgets it; its cursors end.
func (c *Cache) Release() {
	s := c.space
	s.mu.Lock()
	c.users--
	if c.users > 0 {
		s.mu.Unlock()
		return
	}
	s.caches = slices.DeleteFunc(s.caches, func(other *Cache) bool { return other == c })
	asleep := c.restart(s.revision.Load(), true)
	s.mu.Unlock()
	ringAll(asleep)
}

// Each calls visit for every cache there is.
func (s *Space) Each(visit func(*Cache)) {
	s.mu.Lock()
	all := slices.Clone(s.caches)
	s.mu.Unlock()
	for _, c := range all {
		visit(c)
	}
}

// owner returns the cache a key belongs to, nil if nobody reads it. It needs mu.
func (s *Space) ownerLocked(key string) *Cache {
	at := sort.Search(len(s.caches), func(i int) bool { return s.caches[i].prefix > key })
	if at == 0 || !strings.HasPrefix(key, s.caches[at-1].prefix) {
		return nil
	}
	return s.caches[at-1]
}

// Apply takes the next batch of the event log: complete revisions, none of which
// came before, or is left out. What it says is visible in all caches before Revision says so.
func (s *Space) Apply(batch kv.Batch) {
	ringAll(s.apply(batch))
}

// apply holds mu all the time, so that a cache which begins to load sees either all
// or nothing of the batch. It returns the alarms to ring.
func (s *Space) apply(batch kv.Batch) []*alarm {
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
	var asleep []*alarm
	for _, g := range s.byOwnerLocked(events) {
		asleep = append(asleep, g.owner.take(g.events, batch.Revision)...)
	}
	s.trimLogsLocked(time.Now())
	s.advanceLocked(batch.Revision)
	return asleep
}

// share is the part of a batch that belongs to one cache.
type share struct {
	owner  *Cache
	events []kv.Event
}

// byOwnerLocked divides events by cache, each in order: a cache must see a revision
// as a whole, and a lease that expires deletes keys of many resources at one.
func (s *Space) byOwnerLocked(events []kv.Event) []share {
	var shares []share
	for len(events) > 0 {
		owner := s.ownerLocked(events[0].Key)
		run := 1
		for run < len(events) && s.ownerLocked(events[run].Key) == owner {
			run++
		}
		if owner != nil {
			at := slices.IndexFunc(shares, func(sh share) bool { return sh.owner == owner })
			if at < 0 {
				shares = append(shares, share{owner: owner, events: events[:run:run]})
			} else {
				shares[at].events = append(shares[at].events, events[:run]...)
			}
		}
		events = events[run:]
	}
	return shares
}

// Reset says that the event log goes on after revision and cannot tell what
// happened since the last batch. Every cache reads its keys again. Cursors that have
// read up to revision go on, the others end with an ExpiredError. A revision before
// the last batch's means that etcd was replaced by an older copy, see Replace.
func (s *Space) Reset(revision int64) { s.reset(revision, false) }

// Replace is Reset for an etcd that was replaced by another one, such as a restored
// backup: the same revision may mean something else now, so every cursor ends.
func (s *Space) Replace(revision int64) { s.reset(revision, true) }

func (s *Space) reset(revision int64, replaced bool) {
	var asleep []*alarm
	defer func() { ringAll(asleep) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	replaced = replaced || revision < s.revision.Load()
	for _, c := range s.caches {
		asleep = append(asleep, c.restart(revision, replaced)...)
	}
	if !s.begun {
		s.begun = true
		close(s.started)
	}
	s.advanceLocked(revision)
}

// advanceLocked also goes backward: an etcd that was restored begins again.
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

// ExpiredError says that the changes after a revision are no longer known, neither
// here nor in the event log nor in etcd. Clients are told 410 Expired.
type ExpiredError struct {
	Wanted, Oldest int64
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("changes after revision %d are gone (oldest known %d)", e.Wanted, e.Oldest)
}

// expired turns the feed's word for missing history into ours.
func expired(err error, wanted, oldest int64) error {
	var compacted *kv.CompactedError
	if errors.As(err, &compacted) {
		return &ExpiredError{Wanted: wanted, Oldest: max(oldest, compacted.Oldest)}
	}
	return err
}
