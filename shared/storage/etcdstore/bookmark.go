package etcdstore

import "time"

const (
	// beforeDeadline is how long before a watch's deadline its last bookmark is
	// due, so that the client resumes close to where it was.
	beforeDeadline = 2 * time.Second
	// lastChance is how long before the deadline a bookmark that has nothing to say
	// yet is tried for the last time.
	lastChance = 500 * time.Millisecond
	// lastRetry is the time between such tries.
	lastRetry = 250 * time.Millisecond
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
