package bytecache

import (
	"context"
	"fmt"
	"slices"
	"time"

	"triune.dev/shared/process/garbage"
)

// The compressor is started when the plain bytes exceed their limit. It selects entries by the
// clock algorithm: it only clears recentlyRead of an entry that was read since its last look,
// and compresses the entry if it is still unread at the next look.

const (
	// compressBatch is how many bytes are compressed, and maxScan how many entries are
	// scanned, each time the lock is taken.
	compressBatch = 256 << 10
	maxScan       = 1024
	// compressRounds bounds the rounds of a pass. In the first round every entry may have
	// been read.
	compressRounds = 3
	// The garbage of compression is returned to the operating system when nothing was
	// compressed for quietPause, because the collector alone would retain as much again as
	// the live heap. It is also the minimum time between two passes that only make room for
	// entries read repeatedly.
	quietPause = 10 * time.Second
)

// compresses reports whether compression is enabled.
func (s *Space) compresses() bool { return s.config.PlainBytes >= 0 }

// plainRoom reports whether there is room for so many plain bytes. If not, the compressor
// is asked to make room.
func (s *Space) plainRoom(bytes int64) bool {
	if s.plain.Load()+bytes <= s.config.PlainBytes {
		return true
	}
	if !s.roomWanted.Load() && s.roomWanted.CompareAndSwap(false, true) {
		s.wakeCompressor()
	}
	return false
}

// Plain returns the number of compressible bytes that are not compressed.
func (s *Space) Plain() int64 { return s.plain.Load() }

func (s *Space) wakeCompressor() {
	select {
	case s.compressWake <- struct{}{}:
	default: // a wakeup is pending
	}
}

// RunCompressor compresses entries, as [Config] demands, until ctx is done, and then
// returns nil. It returns an error of the compression library, which only an invalid option
// can cause. It must run in one goroutine, and uses at most half of a processor.
func (s *Space) RunCompressor(ctx context.Context) error {
	roomMade := false // since roomWanted was last cleared
	quiet := time.NewTimer(quietPause)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-quiet.C:
			roomMade = false
			s.roomWanted.Store(false)
			if s.garbageLeft.Swap(false) {
				garbage.ReturnUnused()
			}
			continue
		case <-s.compressWake:
		}
		quiet.Reset(quietPause)
		limit, plain := s.config.PlainBytes, s.plain.Load()
		p := pass{space: s}
		switch {
		case plain > s.trigger.Load():
			p.target, p.rounds = limit-limit/4, compressRounds
		case s.roomWanted.Load() && !roomMade:
			p.target, p.rounds, roomMade = plain-limit/8, 1, true
		default:
			continue
		}
		before := s.plainAdded.Load()
		if err := p.run(ctx); err != nil {
			return err
		}
		quiet.Reset(quietPause)
		left := s.plain.Load()
		s.trigger.Store(nextTrigger(limit, left, s.plainAdded.Load()-before))
		if s.plain.Load() > s.trigger.Load() {
			s.wakeCompressor()
		}
	}
}

// nextTrigger returns the number of plain bytes beyond which the next pass begins. The last
// pass has left so many plain bytes, of which came arrived during it. Bytes that are
// incompressible or read all the time are not tried again before an eighth of the limit is
// new. Bytes that came during the pass count as new, because the pass may have missed them.
func nextTrigger(limit, left, came int64) int64 { return max(limit, left-came+limit/8) }

// pass compresses entries of all caches, one after another.
type pass struct {
	space *Space
	// target is the number of plain bytes at which the pass ends.
	target int64
	rounds int
}

func (p pass) done(ctx context.Context) bool {
	return ctx.Err() != nil || p.space.plain.Load() <= p.target
}

func (p pass) run(ctx context.Context) error {
	for range p.rounds {
		var all []*Cache
		p.space.Each(func(c *Cache) { all = append(all, c) })
		// Continue where the last pass ended.
		at := slices.IndexFunc(all, func(c *Cache) bool { return c.prefix >= p.space.compressAt })
		if at > 0 {
			all = slices.Concat(all[at:], all[:at])
		}
		for _, c := range all {
			if p.done(ctx) {
				return nil
			}
			p.space.compressAt = c.prefix
			if err := p.compress(ctx, c); err != nil {
				return fmt.Errorf("compress %s: %w", c.prefix, err)
			}
		}
	}
	return nil
}

// compress continues in a cache where the last pass stopped, up to the end of the cache.
func (p pass) compress(ctx context.Context, c *Cache) error {
	defer c.releaseDictionary()
	for !p.done(ctx) {
		began := time.Now()
		batch, end := c.coldBatch()
		if len(batch) > 0 {
			dict, err := c.useDictionary(batch)
			if err != nil {
				return err
			}
			results := make([]*compressed, len(batch))
			for i, e := range batch {
				data := e.Plain()
				if data == nil {
					continue
				}
				if results[i], err = dict.compress(data); err != nil {
					return err
				}
			}
			c.setCompressed(batch, results)
		}
		if end {
			return nil
		}
		sleep(ctx, time.Since(began))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// coldBatch returns the next entries that were not read since the last look at them; end
// reports whether the next call starts from the beginning.
func (c *Cache) coldBatch() (batch []*Entry, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live {
		return nil, true
	}
	var bytes, seen int64
	consider := func(e *Entry) {
		seen++
		if e == nil || !e.compressibleLocked() || e.recentlyRead.Swap(0) == 1 {
			return
		}
		batch = append(batch, e)
		bytes += int64(e.length)
	}
	// States that only the log retains come first: they have few readers.
	for c.position.number = max(c.position.number, c.log.first()); c.position.number < c.log.end; {
		changes, _ := c.log.from(c.position.number)
		for _, change := range changes {
			if bytes >= compressBatch || seen >= maxScan {
				return batch, false
			}
			c.position.number++
			consider(change.Before)
		}
	}
	end = true
	c.pivot.Key = c.position.key
	c.tree.Ascend(&c.pivot, func(e *Entry) bool {
		if bytes >= compressBatch || seen >= maxScan {
			c.position.key, end = e.Key, false
			return false
		}
		consider(e)
		return true
	})
	if end {
		c.position = position{}
	}
	return batch, end
}

// position is where the compressor continues in a cache.
type position struct {
	number int64 // of a change in the log
	key    string
}

// useDictionary returns the dictionary of the cache, and makes one from batch if there is
// none.
func (c *Cache) useDictionary(batch []*Entry) (*dictionary, error) {
	c.mu.Lock()
	d := c.dictionary
	c.mu.Unlock()
	if d != nil {
		return d, nil
	}
	d, err := newDictionary(c, batch)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dictionary = d
	return d, nil
}

// releaseDictionary is called at the end of a pass through the cache.
func (c *Cache) releaseDictionary() {
	c.mu.Lock()
	d := c.dictionary
	c.mu.Unlock()
	if d == nil || !d.release() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dictionary == d {
		c.dictionary = nil
	}
}
