package bytecache

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// waiter waits for a revision.
type waiter struct {
	revision int64
	done     chan struct{}
}

const (
	// eventPause is how long one that waits expects the events of a write that has
	// just been made to come by themselves.
	eventPause = 2 * time.Millisecond
	// progressPause is the time between its requests for progress after that.
	progressPause = 200 * time.Millisecond
)

// Await blocks until everything up to revision is in the caches. It fails when
// the context is done.
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
			// The revision may be that of a key which this log does not carry. If the
			// request fails, the next one or an event may still do.
			_ = s.RequestProgress(ctx)
			pause.Reset(progressPause)
		}
	}
}

// RequestProgress asks the event log to say how far it is, without waiting for that.
func (s *Space) RequestProgress(ctx context.Context) error {
	return s.config.Feed.RequestProgress(ctx)
}

func (s *Space) forget(w waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters = slices.DeleteFunc(s.waiters, func(other waiter) bool { return other.done == w.done })
}

// awaitStart blocks until the event log has begun.
func (s *Space) awaitStart(ctx context.Context) error {
	select {
	case <-s.started:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the event log: %w", ctx.Err())
	}
}
