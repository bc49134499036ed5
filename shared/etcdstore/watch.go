package etcdstore

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"triune.dev/shared/etcdstore/kv"
)

// resultBuffer is how many events wait for a reader without holding up the
// watch. What does not fit waits in etcd's client.
const resultBuffer = 32

// Watch implements storage.Interface. An unusable key or version is an error;
// everything found out later, such as history that is gone, is an ERROR event.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	etcdKey, err := s.keys.etcdKey(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	version, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if s.newFunc == nil && (opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks) {
		return nil, apierrors.NewInternalError(errors.New("bookmarks need a function that makes an empty object"))
	}
	initialEvents := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	w := &watcher{
		store:    s,
		key:      etcdKey,
		prefix:   opts.Recursive,
		selector: opts.Predicate,
		progress: opts.ProgressNotify,
		plan:     planWatch(int64(version), opts, initialEvents, s.uncached),
		results:  make(chan watch.Event, resultBuffer),
	}
	w.deadline, _ = ctx.Deadline()
	w.ctx, w.cancel = context.WithCancel(ctx)
	// Where the watch starts is settled before this returns: a change made by
	// a client that has seen the response is after it.
	first, err := w.begin()
	if err != nil {
		if w.ctx.Err() == nil {
			w.results <- errorEvent(err)
		}
		close(w.results)
		w.cancel()
		return w, nil
	}
	go w.run(first)
	return w, nil
}

// errorEvent is the ERROR event for err, always a Status.
func errorEvent(err error) watch.Event {
	var compacted *kv.CompactedError
	if errors.As(err, &compacted) {
		err = apierrors.NewResourceExpired(expiredMessage(compacted))
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	return watch.Event{Type: watch.Error, Object: &st}
}

func expiredMessage(e *kv.CompactedError) string {
	if e.Oldest == 0 {
		return fmt.Sprintf("too old resource version: %d", e.Wanted)
	}
	return fmt.Sprintf("too old resource version: %d (%d)", e.Wanted, e.Oldest)
}

// bookmark makes a bookmark event at a revision; end marks it as the one after
// the initial events.
func (s *Store) bookmark(revision int64, end bool) (watch.Event, error) {
	obj := s.newFunc()
	if err := s.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		return watch.Event{}, fmt.Errorf("bookmark at revision %d: %w", revision, err)
	}
	if end {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return watch.Event{}, fmt.Errorf("bookmark at revision %d: %w", revision, err)
		}
	}
	return watch.Event{Type: watch.Bookmark, Object: obj}, nil
}
