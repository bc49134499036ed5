package reads

import (
	"sync"

	"triune.dev/shared/storage/bytecache"
)

// countKey identifies the part of a collection from a key on.
type countKey struct {
	incarnation int
	revision    int64
	prefix      string
	from        string
}

// counts caches the numbers of objects after a page, so that a LIST in pages does not count
// them for each page.
type counts struct {
	mu     sync.Mutex
	counts map[countKey]int64 // guarded by mu
}

const maxCounts = 256

func (c *counts) put(key countKey, count int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil || len(c.counts) >= maxCounts {
		c.counts = map[countKey]int64{}
	}
	c.counts[key] = count
}

func (c *counts) get(key countKey) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, ok := c.counts[key]
	return count, ok
}

// countFrom returns the number of objects of a plan from its start on.
func (h *Handlers) countFrom(s *bytecache.Snapshot, p *plan) int64 {
	if p.start == "" && p.prefix == h.config.Cache.Prefix() {
		return int64(s.Len())
	}
	if p.start != "" {
		if count, ok := h.counts.get(countKey{s.Incarnation, s.Revision, p.prefix, p.start}); ok {
			return count
		}
	}
	return s.CountFrom(p.prefix, p.start)
}
