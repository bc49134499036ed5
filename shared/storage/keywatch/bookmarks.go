package keywatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// beforeDeadline is how long before a watch's deadline its last bookmark is
	// due, so that the client resumes close to where it was.
	beforeDeadline = 2 * time.Second
	// lastChance is how long before the deadline a bookmark without news is tried for
	// the last time.
	lastChance = 500 * time.Millisecond
	// lastRetry is the time between such tries.
	lastRetry = 250 * time.Millisecond
	// progressWait is how long a bookmark without news waits for the event log to say how
	// far it is.
	progressWait = 100 * time.Millisecond
)

// bookmarks is the state of the bookmarks of a watch.
type bookmarks struct {
	// timer is nil while no bookmark is to come.
	timer    *time.Timer
	due      atomic.Bool
	deadline time.Time
	// asked: the event log was asked how far it is, for the bookmark that is due.
	asked bool
	// last is the revision of the last one.
	last int64
}

// StartBookmarks makes bookmarks due from time to time, if the client wants them, and
// just before the deadline. A zero deadline means that there is none. The caller
// calls StopBookmarks in the end.
func (w *Watch) StartBookmarks(deadline time.Time) {
	w.bookmarks.deadline = deadline
	if w.request.Bookmarks {
		w.schedule()
	}
}

func (w *Watch) schedule() {
	s, b := w.request.source, &w.bookmarks
	now := s.Clock.Now()
	next, ok := nextBookmark(now, s.BookmarkInterval, b.deadline)
	switch {
	case !ok:
		w.StopBookmarks()
	case b.timer == nil:
		b.timer = time.AfterFunc(next.Sub(now), func() {
			b.due.Store(true)
			w.Wake()
		})
	default:
		b.timer.Reset(next.Sub(now))
	}
}

// nextBookmark returns when the next bookmark is due, and whether there is one
// to come. A zero deadline means that the watch has none.
func nextBookmark(now time.Time, every time.Duration, deadline time.Time) (time.Time, bool) {
	next := now.Add(every)
	if deadline.IsZero() {
		return next, true
	}
	if last := deadline.Add(-beforeDeadline); last.Before(next) {
		next = last
	}
	return next, next.After(now)
}

// StopBookmarks stops the timer.
func (w *Watch) StopBookmarks() {
	if w.bookmarks.timer != nil {
		w.bookmarks.timer.Stop()
		w.bookmarks.timer = nil
	}
}

// Bookmark returns the revision of a bookmark that is due now. It is called each time
// after what Next has returned has been sent. One that would say no more than the
// client asked for is left out.
func (w *Watch) Bookmark(ctx context.Context) (revision int64, due bool) {
	b := &w.bookmarks
	if !b.due.Load() {
		return 0, false
	}
	if !b.asked && w.reached == max(b.last, w.Start) {
		// Nothing has moved here; maybe it has elsewhere. Next brings the answer.
		b.asked = true
		w.askProgress(ctx)
		w.Wake()
		return 0, false
	}
	b.asked = false
	b.due.Store(false)
	if w.reached <= w.Start {
		w.postpone()
		return 0, false
	}
	w.schedule()
	b.last = w.reached
	return w.reached, true
}

// postpone schedules another try of a bookmark without news. Before the deadline there is not
// much time for that.
func (w *Watch) postpone() {
	s, b := w.request.source, &w.bookmarks
	now := s.Clock.Now()
	if _, ok := nextBookmark(now, s.BookmarkInterval, b.deadline); ok {
		w.schedule()
		return
	}
	left := b.deadline.Add(-lastChance).Sub(now)
	if left <= 0 {
		w.StopBookmarks()
		return
	}
	b.timer.Reset(min(left, lastRetry))
}

// askProgress asks the event log how far it is, unless another watch is asking, and
// waits a moment for the answer.
func (w *Watch) askProgress(ctx context.Context) {
	s := w.request.source
	// One asks for all: the answer is for everybody.
	if !s.asking.TryLock() {
		return
	}
	defer s.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, progressWait)
	defer cancel()
	_ = s.Cache.Space().Await(ctx, w.reached+1) // no answer is one, too
}

// BookmarkObject returns the object of a bookmark event at a revision; end marks it as the one
// after the initial events.
func (r *Request) BookmarkObject(revision int64, end bool) (runtime.Object, error) {
	obj := r.source.NewFunc()
	if err := r.source.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		return nil, fmt.Errorf("bookmark at revision %d: %w", revision, err)
	}
	if end {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return nil, fmt.Errorf("bookmark at revision %d: %w", revision, err)
		}
	}
	return obj, nil
}
