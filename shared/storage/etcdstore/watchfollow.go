package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"triune.dev/shared/storage/bytecache"
)

// A WATCH is a snapshot of the byte cache for the objects that exist, if the client
// wants them, and a cursor for what comes after it. This file decides where both
// begin; what the events look like is left to those who send them: objects
// (watcher.go), or bytes over HTTP (package reads).

// reconnectPause is the time between two attempts to read history that cannot be read
// at the moment.
const reconnectPause = 250 * time.Millisecond

// WatchRequest is a WATCH with valid parameters.
type WatchRequest struct {
	// Key in etcd of the one watched object, or with Recursive the beginning of
	// the keys of all.
	Key       string
	Recursive bool
	// EndBookmark: the initial events end with a bookmark that says so. Bookmarks:
	// others are sent from time to time.
	EndBookmark, Bookmarks bool
	// Interest is what the watch is woken for: changes of what is below Key. Who judges
	// by a field of the cache may narrow it down.
	Interest bytecache.Interest

	store *Store
	plan  watchPlan
}

// PrepareWatch checks the parameters of a WATCH. Its errors are those that are
// answered before a stream begins.
func (s *Store) PrepareWatch(key string, opts storage.ListOptions) (WatchRequest, error) {
	etcdKey, err := s.keys.etcdKey(key, opts.Recursive)
	if err != nil {
		return WatchRequest{}, err
	}
	return s.PrepareWatchAt(etcdKey, opts)
}

// PrepareWatchAt is PrepareWatch for those who know the key in etcd.
func (s *Store) PrepareWatchAt(etcdKey string, opts storage.ListOptions) (WatchRequest, error) {
	version, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return WatchRequest{}, err
	}
	if err := s.watchable(etcdKey); err != nil {
		return WatchRequest{}, err
	}
	plan := planWatch(int64(version), opts, utilfeature.DefaultFeatureGate.Enabled(features.WatchList), s.uncached)
	r := WatchRequest{
		Key: etcdKey, Recursive: opts.Recursive,
		EndBookmark: plan.endBookmark, Bookmarks: plan.bookmarks,
		store: s, plan: plan,
	}
	if !r.Recursive || strings.HasSuffix(r.Key, "/") {
		r.Interest.Key = r.Key
	}
	return r, nil
}

// watchable fails for keys that are in no cache: nothing else can be watched.
func (s *Store) watchable(etcdKey string) error {
	switch {
	case s.cache == nil:
		return fmt.Errorf("watch %s: the store has no cache", etcdKey)
	case !strings.HasPrefix(etcdKey, s.cache.Prefix()):
		return fmt.Errorf("watch %s: the cache holds what is below %s", etcdKey, s.cache.Prefix())
	}
	return nil
}

// Concerns tells whether a key is one of those watched.
func (r *WatchRequest) Concerns(key string) bool {
	if r.Recursive {
		return strings.HasPrefix(key, r.Key)
	}
	return key == r.Key
}

// Following is a WATCH that has begun. It is used by one
// goroutine and needs no closing.
type Following struct {
	// Start is the revision that the initial events show, or after which events are
	// sent if there are none.
	Start int64

	request  WatchRequest
	snapshot *bytecache.Snapshot
	cursor   *bytecache.Cursor
	// reached: every event at or before it has been pushed, or returned by Next, which says
	// so for those that were pushed before.
	reached int64
	marks   marks
	pusher  bytecache.Pusher
}

// Follow settles where the watch starts: a change made after it has returned is
// among the events. Its errors are for the stream, as ErrorStatus shows them.
func (r *WatchRequest) Follow(ctx context.Context) (*Following, error) {
	f := &Following{request: *r, Start: r.plan.after, marks: marks{poke: make(chan struct{}, 1)}}
	cache := r.store.cache
	var err error
	switch {
	case r.plan.list:
		f.snapshot, err = r.snapshot(ctx)
		if err == nil {
			f.Start = f.snapshot.Revision
		}
	case f.Start == 0:
		f.Start, err = r.store.currentRevision(ctx)
	}
	if err != nil {
		return nil, err
	}
	f.reached = f.Start
	f.cursor, err = cache.CursorFor(ctx, f.Start, r.Interest)
	return f, err
}

// snapshot returns the state that the initial events show.
func (r *WatchRequest) snapshot(ctx context.Context) (*bytecache.Snapshot, error) {
	s := r.store
	atLeast := r.plan.atLeast
	if !r.plan.anyMember {
		var err error
		if atLeast, err = s.currentRevision(ctx); err != nil {
			return nil, err
		}
		if err := s.cache.Await(ctx, atLeast); err != nil {
			return nil, err
		}
		return s.cache.Snapshot(ctx)
	}
	if atLeast > s.cache.Revision() {
		if err := r.await(ctx, atLeast); err != nil {
			return nil, err
		}
	}
	return s.cache.Snapshot(ctx)
}

// await waits for a revision that the client has named.
func (r *WatchRequest) await(ctx context.Context, want int64) error {
	s := r.store
	if s.uncached {
		current, err := s.currentRevision(ctx)
		if err != nil {
			return err
		}
		if current < want {
			return storage.NewTooLargeResourceVersionError(uint64(want), uint64(current), freshRetryAfter)
		}
		return s.cache.Await(ctx, want)
	}
	waiting, cancel := context.WithTimeout(ctx, s.freshTimeout)
	defer cancel()
	err := s.cache.Await(waiting, want)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return storage.NewTooLargeResourceVersionError(uint64(want), uint64(s.cache.Revision()), freshRetryAfter)
}

// BookmarkObject is the object of a bookmark; end is as in WatchRequest.
func (r *WatchRequest) BookmarkObject(revision int64, end bool) (runtime.Object, error) {
	event, err := r.store.bookmark(revision, end)
	return event.Object, err
}

// Initial calls yield for the objects to begin with, in the order of keys, until it
// returns false. It may be called once: the state is let go of afterwards.
func (f *Following) Initial(yield func(*bytecache.Entry) bool) {
	snapshot := f.snapshot
	f.snapshot = nil
	switch {
	case snapshot == nil:
	case !f.request.Recursive:
		if e := snapshot.Get(f.request.Key); e != nil {
			yield(e)
		}
	default:
		prefix := f.request.Key
		snapshot.Ascend(prefix, func(e *bytecache.Entry) bool {
			return strings.HasPrefix(e.Key, prefix) && yield(e)
		})
	}
}

// Next returns what has changed since the last call, with some of what is not watched,
// and waits for a change that may concern the watch, for [Following.Poke], or for a
// bookmark to be due. History that cannot be read at the moment is asked for again for a
// while.
//
// Errors: a *bytecache.ExpiredError, which the client is told; the context's; or that
// of a source which is away. Such a watch ends without a word, so that the client
// resumes from where it was instead of listing everything again.
func (f *Following) Next(ctx context.Context) (bytecache.Changes, error) {
	changes, err := f.cursor.Next(ctx, f.marks.poke)
	if err != nil {
		if changes, err = f.retry(ctx, err); err != nil {
			return bytecache.Changes{}, err
		}
	}
	f.reached = max(f.reached, changes.Revision)
	return changes, nil
}

// PushTo has what Next would return handed to p while Next waits, as far as p takes it; see
// [bytecache.Pusher]. It is called before Next.
func (f *Following) PushTo(p bytecache.Pusher) {
	f.pusher = p
	f.cursor.PushTo(p, f.marks.poke)
}

// Poke makes Next return. Any goroutine may call it.
func (f *Following) Poke() { f.marks.wake() }

func (f *Following) retry(ctx context.Context, err error) (bytecache.Changes, error) {
	s := f.request.store
	giveUp := s.clock.Now().Add(s.reconnectFor)
	for {
		var expired *bytecache.ExpiredError
		if ctx.Err() != nil || errors.As(err, &expired) || s.clock.Now().After(giveUp) {
			return bytecache.Changes{}, err
		}
		pause := s.clock.NewTimer(reconnectPause)
		select {
		case <-pause.C():
		case <-ctx.Done():
			pause.Stop()
			return bytecache.Changes{}, ctx.Err()
		}
		var changes bytecache.Changes
		if changes, err = f.cursor.Next(ctx, f.marks.poke); err == nil {
			return changes, nil
		}
	}
}

// Rewind makes the next call of Next begin after a revision again, which must be a
// complete one that Next has returned changes beyond. A reader that cannot send
// everything at once need not keep the rest.
func (f *Following) Rewind(ctx context.Context, revision int64) error {
	cursor, err := f.request.store.cache.CursorFor(ctx, revision, f.request.Interest)
	if err != nil {
		return err
	}
	f.cursor, f.reached = cursor, revision
	if f.pusher != nil {
		f.cursor.PushTo(f.pusher, f.marks.poke)
	}
	return nil
}
