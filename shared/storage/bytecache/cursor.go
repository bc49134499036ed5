package bytecache

import (
	"context"
)

// Cursor reads the changes of a resource after a revision. One goroutine uses it, its
// owner. It needs no closing.
type Cursor struct {
	cache *Cache
	// revision is the revision up to which all changes have been read or skipped.
	revision int64
	// number is the number of the next change in the log, if the log is still in the
	// section.
	number, section int64
	interest        Interest
	// epoch and incarnation are those of the cache for which revision is valid.
	epoch       int32
	incarnation int
	// push is nil if the cursor has no Pusher.
	push *push
}

// Changes is a result of Next.
type Changes struct {
	// List holds complete revisions, in order. It is empty if Next only reports Revision.
	// It is shared and must not be modified.
	List []*Change
	// Revision is complete: no change at or before it is still to come.
	Revision int64
}

// Cursor returns a cursor that reads the changes after revision, which may lie in the
// future. It loads the cache if necessary. If the changes after revision are lost, Cursor
// or the first Next fails with an *ExpiredError.
func (c *Cache) Cursor(ctx context.Context, revision int64) (*Cursor, error) {
	return c.CursorFor(ctx, revision, Interest{})
}

// CursorFor is Cursor with an Interest, for a reader that needs only some of the changes.
func (c *Cache) CursorFor(ctx context.Context, revision int64, i Interest) (*Cursor, error) {
	if err := c.lockLive(ctx); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	if i.Field != "" && c.options.Fields == nil || i.Field == "" && len(i.Key) <= len(c.prefix) {
		i = Interest{}
	}
	return &Cursor{cache: c, revision: revision, interest: i, epoch: c.epoch, incarnation: c.incarnation}, nil
}

// Next returns the changes since the last call. If there are none it waits for a change
// that matches the Interest, and skips those that do not. If there are very many changes it
// returns the first of them, and the next call does not wait. A value from poke ends the
// wait without changes; a bookmark learns its revision in this way.
//
// After an *ExpiredError the cursor is unusable. Any other error, of the context, etcd or
// the event log, leaves the cursor at its position, and Next may be called again.
func (cur *Cursor) Next(ctx context.Context, poke <-chan struct{}) (Changes, error) {
	if cur.push != nil {
		return cur.nextPushed(ctx)
	}
	for {
		changes, wake, err := cur.available(ctx, true)
		if wake == nil {
			return changes, err
		}
		select {
		case <-wake.fired:
			cur.moveTo(wake.from)
		case <-poke:
			cur.stopSleeping(wake)
			return cur.Available(ctx)
		case <-ctx.Done():
			cur.stopSleeping(wake)
			return Changes{}, ctx.Err()
		}
	}
}

// Available is Next without waiting.
func (cur *Cursor) Available(ctx context.Context) (Changes, error) {
	changes, _, err := cur.available(ctx, false)
	return changes, err
}

// moveTo moves the cursor over changes that did not match while it slept.
func (cur *Cursor) moveTo(from logPosition) {
	cur.revision = max(cur.revision, from.revision)
	cur.number, cur.section = from.number, from.section
}

// stopSleeping ends the sleep of a cursor that is woken by a poke or the end of its
// context.
func (cur *Cursor) stopSleeping(wake *wakeup) {
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if wake.taken {
		cur.moveTo(wake.from)
		return
	}
	c.wakeups.cancel(cur, wake)
	cur.moveTo(logPosition{c.revisionLocked(), c.log.end, c.log.section})
}

// available returns the available changes. If there are none and sleep is set, it returns
// the wakeup that the cursor now sleeps on.
func (cur *Cursor) available(ctx context.Context, sleep bool) (changes Changes, wake *wakeup, err error) {
	c := cur.cache
	for {
		c.mu.Lock()
		switch {
		case cur.epoch != c.epoch:
			err = cur.checkReset()
			c.mu.Unlock()
			if err != nil {
				return Changes{}, nil, err
			}
		case c.phase != live:
			c.mu.Unlock()
			if err := c.Load(ctx); err != nil {
				return Changes{}, nil, err
			}
		case cur.behindLogLocked():
			c.mu.Unlock()
			changes, err := cur.readHistory(ctx)
			if err != nil || len(changes.List) > 0 {
				return changes, nil, err
			}
		default:
			changes, more := cur.readLocked()
			if sleep && len(changes.List) == 0 && !more {
				wake = c.wakeups.sleep(cur)
			}
			c.mu.Unlock()
			if len(changes.List) > 0 || !more {
				return changes, wake, nil
			}
		}
	}
}

// behindLogLocked reports whether the log has dropped changes that the cursor has not read.
// It needs the cache's lock.
func (cur *Cursor) behindLogLocked() bool {
	log := &cur.cache.log
	return (cur.section != log.section || cur.number < log.first()) && cur.revision < log.floor
}

// checkReset takes the cursor to a new epoch of the cache, whose lock is held. It fails if
// changes that the cursor has not read may be lost.
func (cur *Cursor) checkReset() error {
	c := cur.cache
	if cur.incarnation != c.incarnation || cur.epoch < c.resetEpoch && cur.revision < c.resetRevision {
		return &ExpiredError{Wanted: cur.revision, Oldest: c.resetRevision}
	}
	cur.epoch = c.epoch
	return nil
}

// readLocked reads from the log, which has all changes after the cursor's revision; more
// reports whether it has more changes than returned. It needs the cache's lock.
func (cur *Cursor) readLocked() (changes Changes, more bool) {
	c := cur.cache
	if cur.section != c.log.section || cur.number < c.log.first() {
		cur.number, cur.section = c.log.after(cur.revision), c.log.section
	}
	list, more := c.log.from(cur.number)
	cur.number += int64(len(list))
	revision := c.revisionLocked()
	if more {
		revision = list[len(list)-1].Revision
	}
	for len(list) > 0 && list[0].Revision <= cur.revision {
		list = list[1:] // the client asked for a future revision
	}
	cur.revision = max(cur.revision, revision)
	return Changes{List: list, Revision: cur.revision}, more
}
