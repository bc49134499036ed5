package bytecache

import (
	"slices"
	"strings"
	"sync/atomic"
)

// Interest is what a cursor is woken for; the zero value is every change. It says what
// may be slept through, not what is returned: a cursor that is awake reads all there is.
type Interest struct {
	// Key is that of one object or, with a slash at its end, what the keys of a number
	// of objects begin with.
	Key string
	// Field and Value are for objects that have, or had before the change, the value in a
	// selectable field of the cache. One without the field has "". Not beside Key.
	Field, Value string
}

// place is where a cursor goes on: at a number of a section of the log, with all changes
// up to a revision read or not wanted.
type place struct{ revision, number, section int64 }

// alarm wakes, once, all cursors that sleep on it.
type alarm struct {
	rung chan struct{}
	// asleep counts those who sleep on it: about how much work it is to wake them. It is
	// written with the cache's lock.
	asleep atomic.Int64
	// roused: it is about to be rung, and nobody else will sleep on it. Guarded by the
	// cache's mu.
	roused bool
	// from is where those who wake go on: nothing before it concerns them. It is set
	// when the alarm is roused, and read after it was rung.
	from place
	// pushed are the sleepers that need not be woken. They are guarded by the cache's mu
	// until the alarm is roused, and nobody's but the ringer's from then on.
	pushed []*Cursor
}

func newAlarm() *alarm { return &alarm{rung: make(chan struct{})} }

// manyAsleep is the number of sleepers beyond which waking them, some 100 ns each,
// is not done by the goroutine that feeds all resources: one with many watchers must
// not delay the others.
const manyAsleep = 256

// ring is called once, without any lock: those who wake want them.
func (a *alarm) ring() {
	for some := range slices.Chunk(a.pushed, pushedAtOnce) {
		go a.push(some)
	}
	if a.asleep.Load() > manyAsleep {
		go close(a.rung) // it blocks on nothing, and ends at once
		return
	}
	close(a.rung)
}

// ringAll is ring for several.
func ringAll(alarms []*alarm) {
	for _, a := range alarms {
		a.ring()
	}
}

// alarms are what the cursors of a cache sleep on, guarded by its mu.
type alarms struct {
	// each has the alarms that somebody sleeps on.
	each map[Interest]*alarm
	// fields counts the alarms about each field.
	fields map[string]int
}

// sleep returns the alarm for the interest of a cursor, which sleeps on it from now on.
func (s *alarms) sleep(cur *Cursor) *alarm {
	i := cur.interest
	a := s.each[i]
	if a == nil {
		if s.each == nil {
			s.each, s.fields = map[Interest]*alarm{}, map[string]int{}
		}
		a = newAlarm()
		s.each[i] = a
		if i.Field != "" {
			s.fields[i.Field]++
		}
	}
	if cur.push != nil {
		cur.push.alarm, cur.push.at = a, len(a.pushed)
		a.pushed = append(a.pushed, cur)
	} else {
		a.asleep.Add(1)
	}
	return a
}

// leave is for a sleeper who is awake before the alarm was roused.
func (s *alarms) leave(cur *Cursor, a *alarm) {
	if cur.push == nil {
		a.asleep.Add(-1)
	} else {
		last := len(a.pushed) - 1
		a.pushed[cur.push.at] = a.pushed[last]
		a.pushed[cur.push.at].push.at = cur.push.at
		a.pushed[last] = nil
		a.pushed = a.pushed[:last]
		cur.push.alarm = nil
	}
	if a.asleep.Load() == 0 && len(a.pushed) == 0 {
		s.forget(cur.interest)
	}
}

func (s *alarms) forget(i Interest) {
	delete(s.each, i)
	if i.Field == "" {
		return
	}
	if s.fields[i.Field]--; s.fields[i.Field] == 0 {
		delete(s.fields, i.Field)
	}
}

// rouse takes out an alarm that is to be rung, if somebody sleeps on it.
func (s *alarms) rouse(roused []*alarm, i Interest, from place) []*alarm {
	a := s.each[i]
	if a == nil {
		return roused
	}
	s.forget(i)
	a.roused, a.from = true, from
	return append(roused, a)
}

// rouseEvery takes out all alarms, or those about a field.
func (s *alarms) rouseEvery(roused []*alarm, field string, from place) []*alarm {
	for i := range s.each {
		if field == "" || i.Field == field {
			roused = s.rouse(roused, i, from)
		}
	}
	return roused
}

// rouseLocked takes out the alarms of those whom changes concern. The changes are the
// last ones of the log.
func (c *Cache) rouseLocked(changes []*Change) (roused []*alarm) {
	from := place{number: c.log.end - int64(len(changes)), section: c.log.section}
	for at, change := range changes {
		if len(c.alarms.each) == 0 {
			break
		}
		// A revision is read as a whole, from its first change on.
		if at == 0 || change.Revision != changes[at-1].Revision {
			from.number = c.log.end - int64(len(changes)-at)
			from.revision = change.Revision - 1
		}
		roused = c.alarms.rouse(roused, Interest{}, from)
		roused = c.alarms.rouse(roused, Interest{Key: change.Key}, from)
		for end := len(c.prefix); ; {
			slash := strings.IndexByte(change.Key[end:], '/')
			if slash < 0 {
				break
			}
			end += slash + 1
			roused = c.alarms.rouse(roused, Interest{Key: change.Key[:end]}, from)
		}
		for field := range c.alarms.fields {
			for _, e := range []*Entry{change.Now, change.Before} {
				if e != nil {
					roused = c.rouseByFieldLocked(roused, field, e, from)
				}
			}
		}
	}
	return roused
}

func (c *Cache) rouseByFieldLocked(roused []*alarm, field string, e *Entry, from place) []*alarm {
	all, err := c.FieldsOf(e)
	if err != nil {
		return c.alarms.rouseEvery(roused, field, from) // theirs to find out what it means
	}
	return c.alarms.rouse(roused, Interest{Field: field, Value: all[field]}, from)
}
