package bytecache

import (
	"context"
)

// Cursor reads the changes of a resource after a revision. It is used by one
// goroutine, its owner, and needs no closing.
type Cursor struct {
	cache *Cache
	// revision: everything at or before it has been read, or was not wanted.
	revision int64
	// number of the next change in the log, if the log is in the same section.
	number, section int64
	interest        Interest
	// era and history are the cache's when revision was true.
	era     int32
	history int
	// push is nil for a cursor whose owner is always woken.
	push *push
}

// Changes is what Next returns.
type Changes struct {
	// List is in order, complete revisions only, empty where Next only has to say
	// how far it is. It is shared: nobody may write to it.
	List []*Change
	// Revision: no change at or before it is still to come.
	Revision int64
}

// Cursor returns one that reads what comes after revision, which may lie in the
// future; what is at or before it is left out. It loads the cache if need be. It
// fails with an *ExpiredError where that history is gone, at the latest in Next.
func (c *Cache) Cursor(ctx context.Context, revision int64) (*Cursor, error) {
	return c.CursorFor(ctx, revision, Interest{})
}

// CursorFor is Cursor for somebody whom many changes do not concern, and who need not
// be woken for them.
func (c *Cache) CursorFor(ctx context.Context, revision int64, i Interest) (*Cursor, error) {
	if err := c.lockLive(ctx); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	if i.Field != "" && c.options.Fields == nil || i.Field == "" && len(i.Key) <= len(c.prefix) {
		i = Interest{}
	}
	return &Cursor{cache: c, revision: revision, interest: i, era: c.era, history: c.history}, nil
}

// Next returns the changes after the last call's, and waits for the first one that
// concerns it if there is none, leaving out what does not concern it meanwhile. If
// there are very many, it returns the first of them, and the next call does not wait.
// It also returns, without changes, when poke delivers something, which is how a
// bookmark learns the revision to carry.
//
// Errors: *ExpiredError when history is gone, after which the cursor is over. All
// others, the context's and those of etcd and the event log, leave it where it was:
// Next may be called again.
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
		case <-wake.rung:
			cur.goOn(wake.from)
		case <-poke:
			cur.leave(wake)
			return cur.Available(ctx)
		case <-ctx.Done():
			cur.leave(wake)
			return Changes{}, ctx.Err()
		}
	}
}

// Available is Next that never waits for a change.
func (cur *Cursor) Available(ctx context.Context) (Changes, error) {
	changes, _, err := cur.available(ctx, false)
	return changes, err
}

// goOn skips what came while the cursor slept and does not concern it.
func (cur *Cursor) goOn(from place) {
	cur.revision = max(cur.revision, from.revision)
	cur.number, cur.section = from.number, from.section
}

// leave is for a cursor that wakes up by itself.
func (cur *Cursor) leave(wake *alarm) {
	c := cur.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if wake.roused {
		cur.goOn(wake.from)
		return
	}
	c.alarms.leave(cur, wake)
	cur.goOn(place{c.revisionLocked(), c.log.end, c.log.section})
}

// available returns what there is. Where that is nothing, and the cursor is to sleep,
// wake is what it is woken by.
func (cur *Cursor) available(ctx context.Context, sleep bool) (changes Changes, wake *alarm, err error) {
	c := cur.cache
	for {
		c.mu.Lock()
		switch {
		case cur.era != c.era:
			err = cur.survive()
			c.mu.Unlock()
			if err != nil {
				return Changes{}, nil, err
			}
		case c.phase != live:
			c.mu.Unlock()
			if err := c.Load(ctx); err != nil {
				return Changes{}, nil, err
			}
		case cur.forgottenLocked():
			c.mu.Unlock()
			changes, err := cur.fromHistory(ctx)
			if err != nil || len(changes.List) > 0 {
				return changes, nil, err
			}
		default:
			changes, more := cur.readLocked()
			if sleep && len(changes.List) == 0 && !more {
				wake = c.alarms.sleep(cur)
			}
			c.mu.Unlock()
			if len(changes.List) > 0 || !more {
				return changes, wake, nil
			}
		}
	}
}

// forgottenLocked tells, with the cache's lock held, whether the log has not all that the
// cursor has not read.
func (cur *Cursor) forgottenLocked() bool {
	log := &cur.cache.log
	return (cur.section != log.section || cur.number < log.first()) && cur.revision < log.floor
}

// survive is called, with the cache's lock held, after the cache has begun anew: what this
// cursor has not read may be lost, if there was a reset that it was not ahead of.
func (cur *Cursor) survive() error {
	c := cur.cache
	if cur.history != c.history || cur.era < c.resetEra && cur.revision < c.resetAt {
		return &ExpiredError{Wanted: cur.revision, Oldest: c.resetAt}
	}
	cur.era = c.era
	return nil
}

// readLocked reads from the log, which has all there is after the cursor. The
// cache's lock is held. more tells that there is more than what is returned.
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
		list = list[1:] // the client asked for a revision that was yet to come
	}
	cur.revision = max(cur.revision, revision)
	return Changes{List: list, Revision: cur.revision}, more
}
