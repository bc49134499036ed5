package bytecache

import (
	"slices"
	"strings"
	"sync/atomic"
)

// logPosition is the position of a cursor: the number of the next change in a section of
// the log, after which all changes up to revision are read or skipped.
type logPosition struct{ revision, number, section int64 }

// wakeup wakes all cursors that sleep on it, once.
type wakeup struct {
	fired chan struct{}
	// sleepers counts the cursors to wake, without those in pushed. It is written with the
	// cache's lock.
	sleepers atomic.Int64
	// taken is set when the wakeup is about to fire; no other cursor will sleep on it.
	// Guarded by the cache's mu.
	taken bool
	// from is the position at which the cursors continue: no change before it matches. It
	// is set with taken, and read after the wakeup has fired.
	from logPosition
	// pushed are the sleeping cursors with a Pusher. The list is guarded by the cache's mu
	// until the wakeup is taken, and owned by the caller of fire from then on.
	pushed []*Cursor
}

func newWakeup() *wakeup { return &wakeup{fired: make(chan struct{})} }

// manySleepers is the number of cursors beyond which they are woken, at some 100 ns each,
// by another goroutine: a resource with many watchers must not delay the feed of all
// resources.
const manySleepers = 256

// fire wakes the cursors. It is called once, without a lock, because the woken cursors take
// the locks.
func (w *wakeup) fire() {
	for some := range slices.Chunk(w.pushed, pushChunk) {
		go w.pushAll(some)
	}
	if w.sleepers.Load() > manySleepers {
		go close(w.fired) // never blocks
		return
	}
	close(w.fired)
}

// fireAll fires all wakeups.
func fireAll(wakeups []*wakeup) {
	for _, w := range wakeups {
		w.fire()
	}
}

// wakeups are the wakeups of the sleeping cursors of a cache, guarded by its mu.
type wakeups struct {
	// byInterest has the wakeups with at least one sleeping cursor.
	byInterest map[Interest]*wakeup
	// fieldCount counts the wakeups for each field.
	fieldCount map[string]int
}

// sleep adds a cursor to the wakeup for its interest, and returns the wakeup.
func (s *wakeups) sleep(cur *Cursor) *wakeup {
	i := cur.interest
	w := s.byInterest[i]
	if w == nil {
		if s.byInterest == nil {
			s.byInterest, s.fieldCount = map[Interest]*wakeup{}, map[string]int{}
		}
		w = newWakeup()
		s.byInterest[i] = w
		if i.Field != "" {
			s.fieldCount[i.Field]++
		}
	}
	if cur.push != nil {
		cur.push.wakeup, cur.push.index = w, len(w.pushed)
		w.pushed = append(w.pushed, cur)
	} else {
		w.sleepers.Add(1)
	}
	return w
}

// cancel removes a cursor from a wakeup that is not taken.
func (s *wakeups) cancel(cur *Cursor, w *wakeup) {
	if cur.push == nil {
		w.sleepers.Add(-1)
	} else {
		last := len(w.pushed) - 1
		w.pushed[cur.push.index] = w.pushed[last]
		w.pushed[cur.push.index].push.index = cur.push.index
		w.pushed[last] = nil
		w.pushed = w.pushed[:last]
		cur.push.wakeup = nil
	}
	if w.sleepers.Load() == 0 && len(w.pushed) == 0 {
		s.remove(cur.interest)
	}
}

func (s *wakeups) remove(i Interest) {
	delete(s.byInterest, i)
	if i.Field == "" {
		return
	}
	if s.fieldCount[i.Field]--; s.fieldCount[i.Field] == 0 {
		delete(s.fieldCount, i.Field)
	}
}

// take removes the wakeup for an interest, if there is one, and appends it to taken.
func (s *wakeups) take(taken []*wakeup, i Interest, from logPosition) []*wakeup {
	w := s.byInterest[i]
	if w == nil {
		return taken
	}
	s.remove(i)
	w.taken, w.from = true, from
	return append(taken, w)
}

// takeAll takes the wakeups for a field, or all wakeups if field is empty.
func (s *wakeups) takeAll(taken []*wakeup, field string, from logPosition) []*wakeup {
	for i := range s.byInterest {
		if field == "" || i.Field == field {
			taken = s.take(taken, i, from)
		}
	}
	return taken
}

// takeWakeupsLocked takes the wakeups that match changes, which must be the last ones in
// the log.
func (c *Cache) takeWakeupsLocked(changes []*Change) (taken []*wakeup) {
	from := logPosition{number: c.log.end - int64(len(changes)), section: c.log.section}
	for at, change := range changes {
		if len(c.wakeups.byInterest) == 0 {
			break
		}
		// A cursor reads a revision as a whole, from its first change on.
		if at == 0 || change.Revision != changes[at-1].Revision {
			from.number = c.log.end - int64(len(changes)-at)
			from.revision = change.Revision - 1
		}
		taken = c.wakeups.take(taken, Interest{}, from)
		taken = c.wakeups.take(taken, Interest{Key: change.Key}, from)
		for end := len(c.prefix); ; {
			slash := strings.IndexByte(change.Key[end:], '/')
			if slash < 0 {
				break
			}
			end += slash + 1
			taken = c.wakeups.take(taken, Interest{Key: change.Key[:end]}, from)
		}
		for field := range c.wakeups.fieldCount {
			for _, e := range []*Entry{change.Now, change.Before} {
				if e != nil {
					taken = c.takeByFieldLocked(taken, field, e, from)
				}
			}
		}
	}
	return taken
}

// takeByFieldLocked takes the wakeups that match an entry's value of a field.
func (c *Cache) takeByFieldLocked(taken []*wakeup, field string, e *Entry, from logPosition) []*wakeup {
	all, err := c.FieldsOf(e)
	if err != nil {
		return c.wakeups.takeAll(taken, field, from) // the readers handle the error
	}
	return c.wakeups.take(taken, Interest{Field: field, Value: all[field]}, from)
}
