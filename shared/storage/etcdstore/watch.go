package etcdstore

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/keywatch"
)

// resultBuffer is the number of events that may wait for the receiver. More events wait in
// the log of the cache.
const resultBuffer = 32

// Watches returns what makes the watches of the resource, nil without a cache.
func (s *Store) Watches() *keywatch.Source { return s.watches }

// Watch implements storage.Interface. An unusable key or version is an error;
// everything found out later, such as history that is gone, is an ERROR event.
// Bookmarks are for the clients that ask for them; opts.ProgressNotify, by which
// kube-apiserver's watch cache asks its storage for them, has no effect.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	etcdKey, err := s.keys.etcdKey(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	if s.watches == nil {
		return nil, fmt.Errorf("watch %s: the store has no cache", etcdKey)
	}
	request, err := s.watches.Prepare(etcdKey, opts)
	if err != nil {
		return nil, err
	}
	if s.newFunc == nil && opts.Predicate.AllowWatchBookmarks {
		return nil, apierrors.NewInternalError(errors.New("bookmarks need a function that makes an empty object"))
	}
	w := &watcher{store: s, request: request, selector: opts.Predicate, results: make(chan watch.Event, resultBuffer)}
	w.deadline, _ = ctx.Deadline()
	w.ctx, w.cancel = context.WithCancel(ctx)
	// Determine the start before this returns, so that changes by a client that has seen
	// the response come after it.
	keys, err := w.request.Start(w.ctx)
	if err != nil {
		if w.ctx.Err() == nil {
			w.results <- s.errorEvent(err)
		}
		close(w.results)
		w.cancel()
		return w, nil
	}
	go w.run(keys)
	return w, nil
}

func (s *Store) errorEvent(err error) watch.Event {
	return watch.Event{Type: watch.Error, Object: s.watches.Status(err)}
}
