package bytecache

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Reads counts the reads of a cache in the terms of the metrics of kube-apiserver's watch
// cache. Its methods are safe for concurrent use.
type Reads struct {
	mu sync.Mutex
	// counts are guarded by mu.
	counts ReadCounts
}

// ReadCounts are the counts of a [Reads].
type ReadCounts struct {
	// Lists are the LISTs by the declared index that they used: "" for none.
	Lists map[string]ListCount
	// Returned is the number of objects that the LISTs returned.
	Returned int64
	// InitialEvents is the number of objects with which watches began.
	InitialEvents int64
	// Consistent and Inconsistent are the numbers of LISTs of the newest state that the
	// cache answered, and that it did not have in time.
	Consistent, Inconsistent int64
	// Waits has the times that reads waited for a revision.
	Waits WaitTimes
}

// ListCount counts LISTs, and the objects that they looked at.
type ListCount struct{ Lists, Fetched int64 }

// WaitBounds are the upper bounds of WaitTimes.Buckets, in seconds: those of kube-apiserver's
// apiserver_watch_cache_read_wait_seconds.
var WaitBounds = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3}

// WaitTimes is a histogram of times. Buckets are not cumulative, and do not count times above
// the last bound.
type WaitTimes struct {
	Buckets [13]uint64
	Count   uint64
	Seconds float64
}

// Reads returns the counts of the reads of this cache.
func (c *Cache) Reads() *Reads { return &c.reads }

// CountList counts a LIST that looked at fetched objects of the index (or at any, if index is
// ""), and returned some of them. Each index is an entry for ever, see [Cache.Declares].
func (r *Reads) CountList(index string, fetched, returned int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts.Lists == nil {
		r.counts.Lists = map[string]ListCount{}
	}
	count := r.counts.Lists[index]
	count.Lists++
	count.Fetched += int64(fetched)
	r.counts.Lists[index] = count
	r.counts.Returned += int64(returned)
}

// CountInitialEvents counts the objects with which a watch began.
func (r *Reads) CountInitialEvents(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.InitialEvents += int64(n)
}

// CountConsistent counts a LIST of the newest state. answered reports whether the cache
// answered it.
func (r *Reads) CountConsistent(answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if answered {
		r.counts.Consistent++
	} else {
		r.counts.Inconsistent++
	}
}

// CountWait counts a read that waited for a revision, or found it: then waited is 0.
func (r *Reads) CountWait(waited time.Duration) {
	seconds := waited.Seconds()
	bucket, _ := slices.BinarySearch(WaitBounds, seconds)
	r.mu.Lock()
	defer r.mu.Unlock()
	if bucket < len(WaitBounds) {
		r.counts.Waits.Buckets[bucket]++
	}
	r.counts.Waits.Count++
	r.counts.Waits.Seconds += seconds
}

// Counts returns the current counts.
func (r *Reads) Counts() ReadCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.counts
	counts.Lists = maps.Clone(counts.Lists)
	return counts
}

// Declares reports whether t has one of Options.Indexes. Clients choose the terms of the other
// indexes, so that these must not name series of metrics.
func (c *Cache) Declares(t Term) bool {
	return slices.ContainsFunc(c.options.Indexes, func(declared Term) bool {
		return declared.Field == t.Field && declared.Key == t.Key
	})
}

// Resource returns the group and the resource of the objects, "" if the options do not name
// them.
func (c *Cache) Resource() (group, resource string) { return c.options.Group, c.options.Resource }
