package bytecache

import (
	"context"
	"sync"
)

// Pusher hands on changes in the place of a cursor's owner, while that sleeps: to wake
// a goroutine for a change that hundreds are to hear of costs more than to tell them.
type Pusher interface {
	// Push hands on all of the changes and returns true, or nothing of them and returns
	// false; then the owner is woken, and has them from Next. It is called in any
	// goroutine, but never while another call or the owner is awake, and must not block.
	Push(changes Changes, batch *Batch) bool
}

// Batch is what a number of calls of Push, one after another, have in common.
type Batch struct {
	// Pieces is for whoever pushes, and nobody reads what is left in it.
	Pieces [][]byte

	flush []Flusher
}

// Flusher sends what has been handed on to it; it does not wait for that.
type Flusher interface{ Flush() }

// Flush has f flushed after some more calls.
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
	// pushedAtOnce is how many cursors a goroutine is pushed to by, which takes it less than
	// a millisecond: others wait for the processor meanwhile.
	pushedAtOnce = 1024
	// flushedAfter is how many may be pushed to before what they have been given is sent.
	flushedAfter = 256
)

// push is what a cursor has that can be pushed to.
type push struct {
	to Pusher
	// wake is what the owner sleeps on, with room for one.
	wake chan struct{}
	// moving is held by who may move the cursor: the owner while it is awake, or who pushes.
	// It is locked before the cache's mu.
	moving sync.Mutex
	// alarm is what the cursor sleeps on, at an index of its list; guarded by the cache's
	// mu. It is nil while the cursor is awake.
	alarm *alarm
	at    int
}

// PushTo has changes handed to p while Next waits. wake, which needs room for one, takes
// the place of the poke of Next: the owner is woken by it for what could not be pushed, too.
// It is called by the owner, at most once.
func (cur *Cursor) PushTo(p Pusher, wake chan struct{}) {
	cur.push = &push{to: p, wake: wake}
	cur.push.moving.Lock()
}

// nextPushed is Next for a cursor that can be pushed to.
func (cur *Cursor) nextPushed(ctx context.Context) (Changes, error) {
	changes, wake, err := cur.available(ctx, true)
	if wake == nil {
		return changes, err
	}
	cur.push.moving.Unlock()
	select {
	case <-cur.push.wake:
		cur.awake()
		return cur.Available(ctx)
	case <-ctx.Done():
		cur.awake()
		return Changes{}, ctx.Err()
	}
}

// awake takes the cursor back.
func (cur *Cursor) awake() {
	cur.push.moving.Lock()
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	switch a := cur.push.alarm; {
	case a == nil: // it could not be pushed to
	case a.roused:
		cur.push.alarm = nil // whoever pushes finds that it does not sleep any more
		cur.goOn(a.from)
	default:
		c.alarms.leave(cur, a)
		cur.goOn(place{c.revisionLocked(), c.log.end, c.log.section})
	}
}

// push pushes to cursors that slept on an alarm which has been roused.
func (a *alarm) push(cursors []*Cursor) {
	var batch Batch
	for i, cur := range cursors {
		cur.pushed(a, &batch)
		if i%flushedAfter == flushedAfter-1 {
			batch.end()
		}
	}
	batch.end()
}

// pushed pushes what there is for a cursor, which goes on sleeping, or wakes its owner.
func (cur *Cursor) pushed(a *alarm, batch *Batch) {
	p := cur.push
	if !p.moving.TryLock() {
		cur.wakeOwner() // it is awake already, or about to fall asleep on this alarm
		return
	}
	defer p.moving.Unlock()
	if !cur.rise(a) {
		return
	}
	for cur.pushOnce(batch) {
	}
}

// rise takes a cursor off an alarm that has been roused. It returns false if that is not
// the one it sleeps on.
func (cur *Cursor) rise(a *alarm) bool {
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if cur.push.alarm != a {
		return false
	}
	cur.push.alarm = nil
	cur.goOn(a.from)
	return true
}

// pushOnce returns true if there may be more to push.
func (cur *Cursor) pushOnce(batch *Batch) (more bool) {
	before, settled := *cur, false
	defer func() {
		if settled {
			return
		}
		_ = recover() // the owner meets the same, where it is dealt with
		cur.revision, cur.number, cur.section = before.revision, before.number, before.section
		cur.wakeOwner()
	}()
	changes, asleep := cur.pushable()
	more = !asleep && len(changes.List) > 0 && cur.push.to.Push(changes, batch)
	settled = asleep || more
	return more
}

// pushable returns the changes that come next. Where there are none the cursor sleeps
// again; where they are not at hand there are none, and it does not.
func (cur *Cursor) pushable() (changes Changes, asleep bool) {
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if cur.era != c.era || c.phase != live || cur.forgottenLocked() {
		return Changes{}, false
	}
	changes, more := cur.readLocked()
	if len(changes.List) == 0 && !more {
		c.alarms.sleep(cur)
		return Changes{}, true
	}
	return changes, false
}

func (cur *Cursor) wakeOwner() {
	select {
	case cur.push.wake <- struct{}{}:
	default: // it is about to wake
	}
}
