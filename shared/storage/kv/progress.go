package kv

import (
	"context"
	"sync"
	"time"
)

// progressInterval is the least time between two progress requests on one
// client. On a stream with one watch an answer costs etcd next to nothing.
const progressInterval = 20 * time.Millisecond

// progressLimiter lets one request through per interval.
type progressLimiter struct {
	mu   sync.Mutex
	last time.Time // guarded by mu
}

func (l *progressLimiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && now.Sub(l.last) < progressInterval {
		return false
	}
	l.last = now
	return true
}

// RequestProgress asks etcd to tell the client's Stream how far it is. etcd stays
// silent while that is catching up with history, so a caller that needs an answer asks
// again. Requests that come too fast after another one are dropped, and also those that
// come before etcd has acknowledged the watch.
func (c *Client) RequestProgress(ctx context.Context) error {
	if !c.own.acknowledged.Load() {
		return nil
	}
	if !c.progress.allow(time.Now()) {
		return nil
	}
	return c.watcher.RequestProgress(c.watchContext(ctx))
}
