package bytecache

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// waiter is a call of Await.
type waiter struct {
	revision int64
	done     chan struct{}
}

const (
	// eventPause is how long Await waits for the events of a recent write before it
	// requests progress.
	eventPause = 2 * time.Millisecond
	// progressPause is the interval between further requests for progress.
	progressPause = 200 * time.Millisecond
)

// Await blocks until the caches have every change up to revision. It fails when ctx is
// done.
func (s *Space) Await(ctx context.Context, revision int64) error {
	if s.revision.Load() >= revision {
		return nil
	}
	w := waiter{revision: revision, done: make(chan struct{})}
	s.mu.Lock()
	if s.revision.Load() >= revision {
		s.mu.Unlock()
		return nil
	}
	s.waiters = append(s.waiters, w)
	s.mu.Unlock()
	pause := time.NewTimer(eventPause)
	defer pause.Stop()
	for {
		select {
		case <-w.done:
			return nil
		case <-ctx.Done():
			s.forget(w)
			return fmt.Errorf("wait for revision %d: %w", revision, ctx.Err())
		case <-pause.C:
			// The log may not carry the key that was written at the revision. If this
			// request fails, a later one or an event still ends the wait.
			_ = s.RequestProgress(ctx)
			pause.Reset(progressPause)
		}
	}
}

// Await blocks until this cache has every change up to revision. It fails when ctx is done.
func (c *Cache) Await(ctx context.Context, revision int64) error {
	if err := c.space.Await(ctx, revision); err != nil {
		return err
	}
	for {
		c.mu.Lock()
		if c.revisionLocked() >= revision {
			c.mu.Unlock()
			return nil
		}
		if _, waiting := c.queue.first(); !waiting {
			c.mu.Unlock() // etcd was replaced by an older copy
			return c.space.Await(ctx, revision)
		}
		if c.queue.progressed == nil {
			c.queue.progressed = make(chan struct{})
		}
		progressed := c.queue.progressed
		c.mu.Unlock()
		select {
		case <-progressed:
		case <-ctx.Done():
			return fmt.Errorf("wait for revision %d of %s: %w", revision, c.prefix, ctx.Err())
		}
	}
}

// RequestProgress asks the event log to report its revision, and does not wait for the
// report.
func (s *Space) RequestProgress(ctx context.Context) error {
	return s.config.Feed.RequestProgress(ctx)
}

func (s *Space) forget(w waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters = slices.DeleteFunc(s.waiters, func(other waiter) bool { return other.done == w.done })
}

// awaitStart blocks until the event log has started.
func (s *Space) awaitStart(ctx context.Context) error {
	select {
	case <-s.started:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the event log: %w", ctx.Err())
	}
}
