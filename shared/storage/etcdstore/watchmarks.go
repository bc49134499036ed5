package etcdstore

import (
	"context"
	"sync/atomic"
	"time"
)

// marks says when a watch of the byte cache owes a bookmark.
type marks struct {
	// poke wakes the watch up.
	poke chan struct{}
	// timer is nil while no bookmark is to come.
	timer    *time.Timer
	fired    atomic.Bool
	deadline time.Time
	// asked: the event log was asked how far it is, for the bookmark that is due.
	asked bool
	// last is the revision of the last one.
	last int64
}

func (m *marks) wake() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

func (m *marks) fire() {
	m.fired.Store(true)
	m.wake()
}

// StartBookmarks makes bookmarks due from time to time, if the client wants them, and
// just before the deadline. A zero deadline means that there is none. The caller
// calls StopBookmarks in the end.
func (f *Following) StartBookmarks(deadline time.Time) {
	f.marks.deadline = deadline
	if f.request.Bookmarks {
		f.schedule()
	}
}

func (f *Following) schedule() {
	s, m := f.request.store, &f.marks
	now := s.clock.Now()
	next, ok := nextBookmark(now, s.bookmarkEvery, m.deadline)
	switch {
	case !ok:
		f.StopBookmarks()
	case m.timer == nil:
		m.timer = time.AfterFunc(next.Sub(now), m.fire)
	default:
		m.timer.Reset(next.Sub(now))
	}
}

// StopBookmarks stops the timer.
func (f *Following) StopBookmarks() {
	if f.marks.timer != nil {
		f.marks.timer.Stop()
		f.marks.timer = nil
	}
}

// Bookmark returns the revision of a bookmark that is due now. It is asked each time
// after what Next has returned has been sent. One that would say no more than the
// client asked for is left out.
func (f *Following) Bookmark(ctx context.Context) (revision int64, due bool) {
	m := &f.marks
	if !m.fired.Load() {
		return 0, false
	}
	if !m.asked && f.reached == max(m.last, f.Start) {
		// Nothing has moved here; maybe it has elsewhere. Next brings the answer.
		m.asked = true
		f.progress(ctx)
		m.wake()
		return 0, false
	}
	m.asked = false
	m.fired.Store(false)
	if f.reached <= f.Start {
		f.postpone()
		return 0, false
	}
	f.schedule()
	m.last = f.reached
	return f.reached, true
}

// postpone tries a bookmark again that had nothing to say. Before the deadline there
// is not much time for that.
func (f *Following) postpone() {
	s, m := f.request.store, &f.marks
	now := s.clock.Now()
	if _, ok := nextBookmark(now, s.bookmarkEvery, m.deadline); ok {
		f.schedule()
		return
	}
	left := m.deadline.Add(-lastChance).Sub(now)
	if left <= 0 {
		f.StopBookmarks()
		return
	}
	m.timer.Reset(min(left, lastRetry))
}

// progressWait is how long a bookmark that would say nothing new waits for the event
// log to say how far it is.
const progressWait = 100 * time.Millisecond

// progress asks the event log how far it is, unless another watch is asking, and
// waits a moment for the answer.
func (f *Following) progress(ctx context.Context) {
	s := f.request.store
	// One asks for all, for the answer is for everybody.
	if !s.asking.TryLock() {
		return
	}
	defer s.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, progressWait)
	defer cancel()
	_ = s.cache.Space().Await(ctx, f.reached+1) // no answer is one, too
}
