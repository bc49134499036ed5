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

// RequestProgress asks etcd to report the progress of the client's Stream. etcd does not
// answer while the watch is catching up with history, so a caller that needs an answer must
// ask again. Requests too soon after another one, or before etcd has acknowledged the watch,
// are dropped.
func (c *Client) RequestProgress(ctx context.Context) error {
	if !c.own.acknowledged.Load() {
		return nil
	}
	if !c.progress.allow(time.Now()) {
		return nil
	}
	return c.watcher.RequestProgress(c.watchContext(ctx))
}
