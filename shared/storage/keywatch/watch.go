package keywatch

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
)

const (
	// retryInterval is the time between two attempts to read history that cannot be read
	// at the moment.
	retryInterval = 250 * time.Millisecond
	// freshRetryAfter, in seconds, is the Retry-After of kube-apiserver's watch cache for a
	// resourceVersion that does not arrive in time.
	freshRetryAfter = 1
)

// Watch is a WATCH that has begun: a snapshot of the byte cache for the existing objects, if
// the client wants them, and a cursor for later changes. It is used by one goroutine
// and needs no closing.
type Watch struct {
	// Start is the revision that the initial events show, or after which events are
	// sent if there are none.
	Start int64

	request  Request
	snapshot *bytecache.Snapshot
	cursor   *bytecache.Cursor
	// reached: every event at or before it has been pushed, or returned by Next, which
	// returns the revision of those that were pushed before.
	reached   int64
	bookmarks bookmarks
	pusher    bytecache.Pusher
	wake      chan struct{}
}

// Start settles where the watch begins: a change made after it has returned is among the
// events. Its errors are for the stream, as [Source.Status] shows them.
func (r *Request) Start(ctx context.Context) (*Watch, error) {
	w := &Watch{request: *r, Start: r.plan.after, wake: make(chan struct{}, 1)}
	var err error
	switch {
	case r.plan.list:
		w.snapshot, err = r.snapshot(ctx)
		if err == nil {
			w.Start = w.snapshot.Revision
		}
	case w.Start == 0:
		w.Start, err = r.source.Revision(ctx)
	}
	if err != nil {
		return nil, err
	}
	w.reached = w.Start
	w.cursor, err = r.source.Cache.CursorFor(ctx, w.Start, r.Interest)
	return w, err
}

// snapshot returns the state that the initial events show.
func (r *Request) snapshot(ctx context.Context) (*bytecache.Snapshot, error) {
	s, atLeast := r.source, r.plan.atLeast
	if !r.plan.anyMember {
		var err error
		if atLeast, err = s.Revision(ctx); err != nil {
			return nil, err
		}
		if err := s.Cache.Await(ctx, atLeast); err != nil {
			return nil, err
		}
		return s.Cache.Snapshot(ctx)
	}
	if atLeast > s.Cache.Revision() {
		if err := s.await(ctx, atLeast); err != nil {
			return nil, err
		}
	}
	return s.Cache.Snapshot(ctx)
}

// await waits for a revision that the client has named.
func (s *Source) await(ctx context.Context, want int64) error {
	if s.Uncached {
		current, err := s.Revision(ctx)
		if err != nil {
			return err
		}
		if current < want {
			return storage.NewTooLargeResourceVersionError(uint64(want), uint64(current), freshRetryAfter)
		}
		return s.Cache.Await(ctx, want)
	}
	waiting, cancel := context.WithTimeout(ctx, s.FreshTimeout)
	defer cancel()
	err := s.Cache.Await(waiting, want)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return storage.NewTooLargeResourceVersionError(uint64(want), uint64(s.Cache.Revision()), freshRetryAfter)
}

// Initial calls yield for the objects to begin with, in the order of keys, until it
// returns false. It may be called once: the snapshot is released afterwards.
func (w *Watch) Initial(yield func(*bytecache.Entry) bool) {
	snapshot := w.snapshot
	w.snapshot = nil
	if snapshot == nil {
		return
	}
	events := 0
	if !w.request.Recursive {
		if e := snapshot.Get(w.request.Key); e != nil {
			events++
			yield(e)
		}
	} else {
		prefix := w.request.Key
		snapshot.Ascend(prefix, func(e *bytecache.Entry) bool {
			if !strings.HasPrefix(e.Key, prefix) {
				return false
			}
			events++
			return yield(e)
		})
	}
	w.request.source.Cache.Reads().CountInitialEvents(events)
}

// Next returns the changes since the last call, some of them to keys outside the watch. It
// waits for a change that may concern the watch, for [Watch.Wake], or for a bookmark to be
// due. If history cannot be read, Next tries again for a while.
//
// Errors: a *bytecache.ExpiredError, which the client is told; the context's; or that
// of an unavailable source. Such a watch ends without an ERROR event, so that the client
// resumes from where it was instead of listing everything again.
func (w *Watch) Next(ctx context.Context) (bytecache.Changes, error) {
	changes, err := w.cursor.Next(ctx, w.wake)
	if err != nil {
		if changes, err = w.retry(ctx, err); err != nil {
			return bytecache.Changes{}, err
		}
	}
	w.reached = max(w.reached, changes.Revision)
	return changes, nil
}

func (w *Watch) retry(ctx context.Context, err error) (bytecache.Changes, error) {
	s := w.request.source
	deadline := s.Clock.Now().Add(s.RetryTimeout)
	for {
		var expired *bytecache.ExpiredError
		if ctx.Err() != nil || errors.As(err, &expired) || s.Clock.Now().After(deadline) {
			return bytecache.Changes{}, err
		}
		pause := s.Clock.NewTimer(retryInterval)
		select {
		case <-pause.C():
		case <-ctx.Done():
			pause.Stop()
			return bytecache.Changes{}, ctx.Err()
		}
		var changes bytecache.Changes
		if changes, err = w.cursor.Next(ctx, w.wake); err == nil {
			return changes, nil
		}
	}
}

// PushTo makes the cursor hand changes to p while Next waits, as far as p takes them; see
// [bytecache.Pusher]. It is called before Next.
func (w *Watch) PushTo(p bytecache.Pusher) {
	w.pusher = p
	w.cursor.PushTo(p, w.wake)
}

// Wake makes Next return. It may be called by any goroutine.
func (w *Watch) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Rewind makes the next call of Next begin after a revision again, which must be a
// complete one that Next has returned changes beyond. A reader that cannot send
// everything at once need not keep the rest.
func (w *Watch) Rewind(ctx context.Context, revision int64) error {
	cursor, err := w.request.source.Cache.CursorFor(ctx, revision, w.request.Interest)
	if err != nil {
		return err
	}
	w.cursor, w.reached = cursor, revision
	if w.pusher != nil {
		w.cursor.PushTo(w.pusher, w.wake)
	}
	return nil
}
