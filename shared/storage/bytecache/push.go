package bytecache

import (
	"context"
	"sync"
)

// Pusher delivers changes while the owner of a cursor sleeps. For a change that matches
// hundreds of cursors, delivering it is cheaper than waking their goroutines.
type Pusher interface {
	// Push delivers all of the changes and returns true, or none of them and returns false.
	// In that case the owner is woken and gets them from Next. Push may be called in any
	// goroutine, but never concurrently and never while the owner is awake. It must not
	// block.
	Push(changes Changes, batch *Batch) bool
}

// Batch is shared by a number of successive calls of Push.
type Batch struct {
	// Pieces is scratch space for Push; its content is ignored.
	Pieces [][]byte

	flush []Flusher
}

// Flusher sends buffered data, without waiting for the transmission.
type Flusher interface{ Flush() }

// Flush schedules a call of f.Flush after some more calls of Push.
func (b *Batch) Flush(f Flusher) {
	if last := len(b.flush) - 1; last < 0 || b.flush[last] != f {
		b.flush = append(b.flush, f)
	}
}

func (b *Batch) end() {
	for _, f := range b.flush {
		f.Flush()
	}
	clear(b.flush)
	b.flush = b.flush[:0]
}

const (
	// pushChunk is the number of cursors that one goroutine pushes to. It takes less than a
	// millisecond, because other goroutines wait for the processor meanwhile.
	pushChunk = 1024
	// flushEvery is the number of cursors after which the scheduled flushes are made.
	flushEvery = 256
)

// push is the state of a pushable cursor.
type push struct {
	to Pusher
	// wake wakes the owner; it has a buffer of one.
	wake chan struct{}
	// moveMu is held by the goroutine that may move the cursor: the owner while it is
	// awake, or a pusher. It is locked before the cache's mu.
	moveMu sync.Mutex
	// wakeup is the wakeup that the cursor sleeps on, and index its index in wakeup.pushed.
	// wakeup is nil while the cursor is awake. Both are guarded by the cache's mu.
	wakeup *wakeup
	index  int
}

// PushTo has changes pushed to p while Next waits. The channel wake, with a buffer of one,
// replaces the poke of Next: it also wakes the owner for changes that could not be pushed.
// The owner calls PushTo at most once.
func (cur *Cursor) PushTo(p Pusher, wake chan struct{}) {
	cur.push = &push{to: p, wake: wake}
	cur.push.moveMu.Lock()
}

// nextPushed is Next for a pushable cursor.
func (cur *Cursor) nextPushed(ctx context.Context) (Changes, error) {
	changes, wake, err := cur.available(ctx, true)
	if wake == nil {
		return changes, err
	}
	cur.push.moveMu.Unlock()
	select {
	case <-cur.push.wake:
		cur.reclaim()
		return cur.Available(ctx)
	case <-ctx.Done():
		cur.reclaim()
		return Changes{}, ctx.Err()
	}
}

// reclaim returns a woken cursor to its owner.
func (cur *Cursor) reclaim() {
	cur.push.moveMu.Lock()
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	switch w := cur.push.wakeup; {
	case w == nil: // it was woken because a push failed
	case w.taken:
		cur.push.wakeup = nil // so that the pusher leaves the cursor alone
		cur.moveTo(w.from)
	default:
		c.wakeups.cancel(cur, w)
		cur.moveTo(logPosition{c.revisionLocked(), c.log.end, c.log.section})
	}
}

// pushAll pushes to cursors that slept on a taken wakeup.
func (w *wakeup) pushAll(cursors []*Cursor) {
	var batch Batch
	for i, cur := range cursors {
		cur.pushOrWake(w, &batch)
		if i%flushEvery == flushEvery-1 {
			batch.end()
		}
	}
	batch.end()
}

// pushOrWake pushes the available changes to a cursor, which then sleeps on, or wakes its
// owner.
func (cur *Cursor) pushOrWake(w *wakeup, batch *Batch) {
	p := cur.push
	if !p.moveMu.TryLock() {
		cur.wakeOwner() // it is awake, or about to sleep on this wakeup
		return
	}
	defer p.moveMu.Unlock()
	if !cur.takeOff(w) {
		return
	}
	for cur.pushOnce(batch) {
	}
}

// takeOff removes a cursor from a taken wakeup. It returns false if the cursor does not
// sleep on it.
func (cur *Cursor) takeOff(w *wakeup) bool {
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if cur.push.wakeup != w {
		return false
	}
	cur.push.wakeup = nil
	cur.moveTo(w.from)
	return true
}

// pushOnce pushes once, and reports whether there may be more to push.
func (cur *Cursor) pushOnce(batch *Batch) (more bool) {
	before, settled := *cur, false
	defer func() {
		if settled {
			return
		}
		_ = recover() // the owner panics on the same changes, where the panic is handled
		cur.revision, cur.number, cur.section = before.revision, before.number, before.section
		cur.wakeOwner()
	}()
	changes, asleep := cur.pushable()
	more = !asleep && len(changes.List) > 0 && cur.push.to.Push(changes, batch)
	settled = asleep || more
	return more
}

// pushable returns the next changes to push. If there are none it puts the cursor to sleep
// again. If they are not in memory it returns no changes, and asleep is false.
func (cur *Cursor) pushable() (changes Changes, asleep bool) {
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if cur.epoch != c.epoch || c.phase != live || cur.behindLogLocked() {
		return Changes{}, false
	}
	changes, more := cur.readLocked()
	if len(changes.List) == 0 && !more {
		c.wakeups.sleep(cur)
		return Changes{}, true
	}
	return changes, false
}

func (cur *Cursor) wakeOwner() {
	select {
	case cur.push.wake <- struct{}{}:
	default: // a wakeup is pending
	}
}
