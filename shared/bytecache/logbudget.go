package bytecache

import (
	"sync/atomic"
	"time"
)

const (
	// DefaultLogBytes is the default of Config.LogBytes: what changes in 75 seconds where
	// 1,000 leases, 500 pods of 3.5 kB, 33 nodes of 12 kB and 200 others change each second.
	DefaultLogBytes = 256 << 20
	// logShare bounds, in bytes, what the log of one resource remembers for longer than
	// logFresh, which is how far back kube-apiserver's watch cache aims to reach.
	logShare = 8 << 20
	logFresh = 75 * time.Second
	// logLook is the time between two looks at all logs for what is no longer fresh.
	logLook = time.Second
)

// logBudget bounds what the logs of all resources remember together. The oldest changes
// go first, whichever resource they are of, so that all logs reach about as far back.
type logBudget struct {
	limit int64
	// share and fresh are logShare and logFresh, but for tests.
	share int64
	fresh time.Duration
	// held is what all logs hold.
	held atomic.Int64
	// looked is when all logs were looked at; guarded by the space's mu.
	looked time.Time
}

// trimLogs is called by those who add changes to a log without the space's lock.
func (s *Space) trimLogs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimLogsLocked(time.Now())
}

// trimLogsLocked makes the logs forget what they should not hold. It needs mu.
func (s *Space) trimLogsLocked(now time.Time) {
	b := &s.logs
	if b.held.Load() <= b.limit && now.Sub(b.looked) < logLook {
		return
	}
	b.looked = now
	since := now.Add(-b.fresh)
	for _, c := range s.caches {
		c.trimLog(since)
	}
	for b.held.Load() > b.limit {
		c := s.oldestLogLocked(since)
		if c == nil {
			return
		}
		c.forgetOldest()
	}
}

// oldestLogLocked returns the cache whose log has the oldest block of all that may be
// forgotten, nil if there is none.
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

// trimLog forgets what came before since, but for this resource's share.
func (c *Cache) trimLog(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.log.bytes > c.space.logs.share && c.log.blocks[0].at.Before(since) {
		c.log.forgetOldest(c.forgetLocked)
	}
}

func (c *Cache) forgetOldest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.log.blocks) > 0 { // it may have been loaded anew meanwhile
		c.log.forgetOldest(c.forgetLocked)
	}
}
