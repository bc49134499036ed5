package etcdstore

import (
	"time"

	"k8s.io/utils/clock"
)

const (
	// beforeDeadline is how long before a watch's deadline its last bookmark is
	// due, so that the client resumes close to where it was.
	beforeDeadline = 2 * time.Second
	// lastChance is when that bookmark is sent from what is known, if etcd has
	// not told any progress by then.
	lastChance = 500 * time.Millisecond
	// progressRetry is the time between two requests for progress while a
	// bookmark is due: etcd does not answer while a watch is catching up.
	progressRetry = time.Second
)

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

// bookmarkTimer says when a watch owes a bookmark. The zero channel of a watch
// without bookmarks never fires.
type bookmarkTimer struct {
	clock    clock.WithTicker
	every    time.Duration
	deadline time.Time
	timer    clock.Timer // nil when no further bookmark is to come

	// due: etcd has been asked for progress, the next answer is the bookmark.
	due bool
}

func newBookmarkTimer(c clock.WithTicker, every time.Duration, deadline time.Time, wanted bool) *bookmarkTimer {
	t := &bookmarkTimer{clock: c, every: every, deadline: deadline}
	if wanted {
		t.schedule()
	}
	return t
}

func (t *bookmarkTimer) schedule() {
	now := t.clock.Now()
	next, ok := nextBookmark(now, t.every, t.deadline)
	if !ok {
		t.stop()
		return
	}
	t.set(next.Sub(now))
}

func (t *bookmarkTimer) set(d time.Duration) {
	if t.timer == nil {
		t.timer = t.clock.NewTimer(d)
		return
	}
	t.timer.Reset(d)
}

func (t *bookmarkTimer) c() <-chan time.Time {
	if t.timer == nil {
		return nil
	}
	return t.timer.C()
}

// fire is called when the timer has fired. It returns true if the bookmark has
// to be sent now, and otherwise arms the timer for the next request.
func (t *bookmarkTimer) fire() bool {
	now := t.clock.Now()
	wait := progressRetry
	if !t.deadline.IsZero() {
		left := t.deadline.Add(-lastChance).Sub(now)
		if left <= 0 {
			return true
		}
		wait = min(wait, left)
	}
	t.due = true
	t.set(wait)
	return false
}

// done is called when the bookmark has been sent.
func (t *bookmarkTimer) done() {
	t.due = false
	if t.timer != nil {
		t.schedule()
	}
}

func (t *bookmarkTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
