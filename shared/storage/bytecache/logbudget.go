package bytecache

import (
	"sync/atomic"
	"time"
)

const (
	// DefaultLogBytes is the default of Config.LogBytes. It holds the changes of 75 seconds
	// if each second 1,000 leases, 500 pods of 3.5 kB, 33 nodes of 12 kB and 200 other
	// objects change.
	DefaultLogBytes = 256 << 20
	// retainedLogBytes is how much of the log of one resource is retained longer than
	// logRetention, which is the period that the watch cache of kube-apiserver aims to
	// cover.
	retainedLogBytes = 8 << 20
	logRetention     = 75 * time.Second
	// trimInterval is the time between two scans of all logs for outdated changes.
	trimInterval = time.Second
)

// logBudget bounds the logs of all resources together. The oldest changes are dropped
// first, regardless of their resource, so that all logs reach back about equally far.
type logBudget struct {
	limit int64
	// perCache and retention are retainedLogBytes and logRetention, except in tests.
	perCache  int64
	retention time.Duration
	// bytes is the size of all logs.
	bytes atomic.Int64
	// lastTrim is the time of the last scan of all logs; guarded by the space's mu.
	lastTrim time.Time
}

// trimLogs is for callers that have added changes to a log without the space's lock.
func (s *Space) trimLogs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimLogsLocked(time.Now())
}

// trimLogsLocked drops outdated changes, and the oldest changes beyond the limit.
func (s *Space) trimLogsLocked(now time.Time) {
	b := &s.logs
	if b.bytes.Load() <= b.limit && now.Sub(b.lastTrim) < trimInterval {
		return
	}
	b.lastTrim = now
	since := now.Add(-b.retention)
	for _, c := range s.caches {
		c.trimLog(since)
	}
	for b.bytes.Load() > b.limit {
		c := s.oldestLogLocked(since)
		if c == nil {
			return
		}
		c.dropOldest()
	}
}

// oldestLogLocked returns the cache with the oldest block that may be dropped, nil if there
// is none.
func (s *Space) oldestLogLocked(since time.Time) (oldest *Cache) {
	var first time.Time
	for _, c := range s.caches {
		c.mu.Lock()
		at, ok := c.log.oldest(since)
		c.mu.Unlock()
		if ok && (oldest == nil || at.Before(first)) {
			oldest, first = c, at
		}
	}
	return oldest
}

// trimLog drops changes from before since, but leaves the log perCache bytes.
func (c *Cache) trimLog(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.log.bytes > c.space.logs.perCache && c.log.blocks[0].at.Before(since) {
		c.log.dropOldest(c.dropChangeLocked)
	}
}

func (c *Cache) dropOldest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.log.blocks) > 0 { // it may have been reset meanwhile
		c.log.dropOldest(c.dropChangeLocked)
	}
}
