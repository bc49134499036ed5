package kv

import (
	"context"
	"sync"
	"time"
)

// progressInterval is the least time between two progress requests on one
// client. etcd's answer goes to every watch of the stream, so asking once
// serves all that wait.
const progressInterval = 500 * time.Millisecond

// progressLimiter lets one request through per interval.
type progressLimiter struct {
	interval time.Duration // fixed after New

	mu   sync.Mutex
	last time.Time // guarded by mu
}

func (l *progressLimiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && now.Sub(l.last) < l.interval {
		return false
	}
	l.last = now
	return true
}

// RequestProgress asks etcd to tell all streams of this client how far they
// are. etcd stays silent while one of them is catching up with history, so a
// caller that needs an answer asks again. Requests that come too fast after
// another one are dropped, and on a stream of one's own also those that come
// before etcd has acknowledged the watch.
func (c *Client) RequestProgress(ctx context.Context) error {
	if c.own.used && !c.own.acknowledged.Load() {
		return nil
	}
	if !c.progress.allow(time.Now()) {
		return nil
	}
	return c.watcher.RequestProgress(c.watchContext(ctx))
}
