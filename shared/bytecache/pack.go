package bytecache

import (
	"context"
	"fmt"
	"slices"
	"time"

	"triune.dev/shared/internal/garbage"
)

// This file decides what is held compressed: what was not read lately, once what is
// held as it is stored has reached its bound. It is a clock: who comes by an entry that
// was read since the last time only notes that, and compresses it the next time.

const (
	// packBatch is how many bytes are compressed between two looks at the clock, and
	// packLook how many entries are looked at under the lock.
	packBatch = 256 << 10
	packLook  = 1024
	// packRounds is how often one pass goes around: at first all may have been read.
	packRounds = 3
	// What compressing leaves behind is given back to the operating system once
	// nothing was compressed for quietPause: the collector alone would keep as much
	// again as what is in use. It is also the least time between two passes that only
	// make room for what is read.
	quietPause = 10 * time.Second
)

// packs tells whether anything is compressed at all.
func (s *Space) packs() bool { return s.config.PlainBytes >= 0 }

// room tells whether so many bytes more may be held as they are. If not, the packer
// looks for others that need not be.
func (s *Space) room(bytes int64) bool {
	if s.plain.Load()+bytes <= s.config.PlainBytes {
		return true
	}
	if !s.wanted.Load() && s.wanted.CompareAndSwap(false, true) {
		s.callPacker()
	}
	return false
}

// Plain is how many bytes are held as they are stored that could be compressed.
func (s *Space) Plain() int64 { return s.plain.Load() }

func (s *Space) callPacker() {
	select {
	case s.packer <- struct{}{}:
	default: // it has been called
	}
}

// Pack compresses what [Config] says is to be, until ctx ends, and then returns nil;
// or the compressor's error, which only a wrong option can cause. One goroutine runs it.
// It takes half of a processor at most.
func (s *Space) Pack(ctx context.Context) error {
	made := false // room was, for those who want it
	quiet := time.NewTimer(quietPause)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-quiet.C:
			made = false
			s.wanted.Store(false)
			if s.left.Swap(false) {
				garbage.ReturnUnused()
			}
			continue
		case <-s.packer:
		}
		quiet.Reset(quietPause)
		limit, plain := s.config.PlainBytes, s.plain.Load()
		p := pass{space: s}
		switch {
		case plain > s.trigger.Load():
			p.target, p.rounds = limit-limit/4, packRounds
		case s.wanted.Load() && !made:
			p.target, p.rounds, made = plain-limit/8, 1, true
		default:
			continue
		}
		before := s.added.Load()
		if err := p.run(ctx); err != nil {
			return err
		}
		quiet.Reset(quietPause)
		left := s.plain.Load()
		s.trigger.Store(nextTrigger(limit, left, s.added.Load()-before))
		if s.plain.Load() > s.trigger.Load() {
			s.callPacker()
		}
	}
}

// nextTrigger is beyond which amount of what is held as it is the next pass begins,
// after one that has left so much of it while so much came. What cannot be compressed,
// or is read all the time, is not tried again before an eighth of the limit is new. What
// came during the pass is new: the pass may have been by where it is now.
func nextTrigger(limit, left, came int64) int64 { return max(limit, left-came+limit/8) }

// pass goes around the caches.
type pass struct {
	space *Space
	// target is where it ends: so many bytes that are held as they are.
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
		// Begin where the last pass has ended.
		at := slices.IndexFunc(all, func(c *Cache) bool { return c.prefix >= p.space.hand })
		if at > 0 {
			all = slices.Concat(all[at:], all[:at])
		}
		for _, c := range all {
			if p.done(ctx) {
				return nil
			}
			p.space.hand = c.prefix
			if err := p.cache(ctx, c); err != nil {
				return fmt.Errorf("compress %s: %w", c.prefix, err)
			}
		}
	}
	return nil
}

// cache goes on where the last pass has been in a cache, to its end.
func (p pass) cache(ctx context.Context, c *Cache) error {
	defer c.restPress()
	for !p.done(ctx) {
		began := time.Now()
		batch, end := c.coldest()
		if len(batch) > 0 {
			press, err := c.usePress(batch)
			if err != nil {
				return err
			}
			results := make([]*packed, len(batch))
			for i, e := range batch {
				data := e.Plain()
				if data == nil {
					continue
				}
				if results[i], err = press.pack(data); err != nil {
					return err
				}
			}
			c.holdPacked(batch, results)
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

// coldest returns the next entries that were not read since the last call that came
// by them; end tells that the next call begins anew.
func (c *Cache) coldest() (batch []*Entry, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live {
		return nil, true
	}
	var bytes, seen int64
	consider := func(e *Entry) {
		seen++
		if e == nil || !e.countedLocked() || e.used.Swap(0) == 1 {
			return
		}
		batch = append(batch, e)
		bytes += int64(e.length)
	}
	// What only the log holds comes first: few will read it.
	for c.hand.number = max(c.hand.number, c.log.first()); c.hand.number < c.log.end; {
		changes, _ := c.log.from(c.hand.number)
		for _, change := range changes {
			if bytes >= packBatch || seen >= packLook {
				return batch, false
			}
			c.hand.number++
			consider(change.Before)
		}
	}
	end = true
	c.pivot.Key = c.hand.key
	c.tree.Ascend(&c.pivot, func(e *Entry) bool {
		if bytes >= packBatch || seen >= packLook {
			c.hand.key, end = e.Key, false
			return false
		}
		consider(e)
		return true
	})
	if end {
		c.hand = hand{}
	}
	return batch, end
}

// hand is where the packer is in a cache.
type hand struct {
	number int64 // of a change in the log
	key    string
}

// usePress returns the press of the cache, made of what is to be compressed if there
// is none.
func (c *Cache) usePress(batch []*Entry) (*press, error) {
	c.mu.Lock()
	p := c.press
	c.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := newPress(c, batch)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.press = p
	return p, nil
}

// restPress is called at the end of compressing for now.
func (c *Cache) restPress() {
	c.mu.Lock()
	p := c.press
	c.mu.Unlock()
	if p == nil || !p.rest() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.press == p {
		c.press = nil
	}
}

// holdPacked has entries hold their bytes compressed, where the result says so and
// the cache still has them.
func (c *Cache) holdPacked(batch []*Entry, results []*packed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range batch {
		if e.era != c.era+1 || !e.countedLocked() {
			continue
		}
		c.countLocked(-int64(e.length))
		if results[i] == nil {
			e.solid = true
			continue
		}
		c.space.left.Store(true)
		e.packed.Store(results[i]) // readers find one of the two
		e.plain.Store(nil)
	}
}

// keepPlain has an entry hold its bytes as they are again. A cache that is busy, which
// may be with the caller itself, is not waited for.
func (c *Cache) keepPlain(e *Entry, was *packed, data []byte) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if e.era != c.era+1 || e.packed.Load() != was {
		return
	}
	e.setPlain(data)
	e.packed.Store(nil)
	c.countLocked(int64(e.length))
}

// countedLocked tells whether the entry's bytes count as ones that could be
// compressed, if a cache has it.
func (h *held) countedLocked() bool {
	return h.length >= minPacked && !h.solid && h.plain.Load() != nil
}

// countLocked notes that so many bytes more are held as they are.
func (c *Cache) countLocked(bytes int64) {
	c.plain += bytes
	c.space.plain.Add(bytes)
}

// addLocked is countLocked for what was not there before. Who finds it counted finds it
// added.
func (c *Cache) addLocked(bytes int64) {
	c.space.added.Add(bytes)
	c.countLocked(bytes)
}

// adoptEntryLocked is called for what comes into the tree or the log.
func (c *Cache) adoptEntryLocked(e *Entry) {
	if e == nil || e.era != 0 {
		return
	}
	e.era = c.era + 1
	if e.countedLocked() {
		c.addLocked(int64(e.length))
	}
}

// releaseEntryLocked is called for what is in the tree and the log no more.
func (c *Cache) releaseEntryLocked(e *Entry) {
	if e == nil || e.era != c.era+1 {
		return
	}
	if e.countedLocked() {
		c.countLocked(-int64(e.length))
	}
	e.era = 0
}
