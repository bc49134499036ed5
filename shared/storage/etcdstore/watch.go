package etcdstore

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
)

// resultBuffer is how many events wait for a reader without holding up the
// watch. What does not fit waits in the log of the cache.
const resultBuffer = 32

// Watch implements storage.Interface. An unusable key or version is an error;
// everything found out later, such as history that is gone, is an ERROR event.
// Bookmarks are for the clients that ask for them; opts.ProgressNotify, by which
// kube-apiserver's watch cache asks its storage for them, has no effect.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	request, err := s.PrepareWatch(key, opts)
	if err != nil {
		return nil, err
	}
	if s.newFunc == nil && opts.Predicate.AllowWatchBookmarks {
		return nil, apierrors.NewInternalError(errors.New("bookmarks need a function that makes an empty object"))
	}
	w := &watcher{store: s, selector: opts.Predicate, results: make(chan watch.Event, resultBuffer)}
	w.deadline, _ = ctx.Deadline()
	w.ctx, w.cancel = context.WithCancel(ctx)
	// Where the watch starts is settled before this returns: a change made by
	// a client that has seen the response is after it.
	f, err := request.Follow(w.ctx)
	if err != nil {
		if w.ctx.Err() == nil {
			w.results <- s.errorEvent(err)
		}
		close(w.results)
		w.cancel()
		return w, nil
	}
	go w.run(f)
	return w, nil
}

func (s *Store) errorEvent(err error) watch.Event {
	return watch.Event{Type: watch.Error, Object: s.ErrorStatus(err)}
}

// ErrorStatus is the object of the ERROR event that ends a watch with err.
func (s *Store) ErrorStatus(err error) *metav1.Status {
	var expired *bytecache.ExpiredError
	switch {
	case s.uncached && errors.As(err, &expired):
		err = apierrors.NewResourceExpired(watchExpired)
	case errors.As(err, &expired):
		err = apierrors.NewResourceExpired(expiredMessage(expired.Wanted, expired.Oldest))
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	return &st
}

// watchExpired is what kube-apiserver says where it has no watch cache.
const watchExpired = "The resourceVersion for the provided watch is too old."

func expiredMessage(wanted, oldest int64) string {
	if oldest == 0 {
		return fmt.Sprintf("too old resource version: %d", wanted)
	}
	return fmt.Sprintf("too old resource version: %d (%d)", wanted, oldest)
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
