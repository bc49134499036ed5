package etcdstore

import "time"

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
