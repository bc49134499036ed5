package etcdstore

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/klog/v2"

	"triune.dev/shared/bytecache"
)

// This file is the watcher whose events come from the byte cache. It decodes them
// for itself: it serves those in this process who want objects, and the resources
// whose bytes cannot be sent as they are.

// runCached is the goroutine of the watch.
func (w *watcher) runCached(f *Following) {
	defer close(w.results)
	defer w.cancel()
	err := w.initialCached(f)
	// Priority and fairness stops counting the request as starting up.
	flowcontrol.WatchInitialized(w.ctx)
	if err == nil {
		err = w.liveCached(f)
	}
	w.finish(err)
}

func (w *watcher) initialCached(f *Following) error {
	w.start, w.reached = f.Start, f.Start
	var err error
	f.Initial(func(e *bytecache.Entry) bool {
		var obj runtime.Object
		if obj, err = w.entry(e, e.Revision); err == nil && w.matches(obj) {
			err = w.send(watch.Event{Type: watch.Added, Object: obj})
		}
		return err == nil
	})
	if err != nil || !w.plan.endBookmark {
		return err
	}
	return w.sendBookmark(w.start, true)
}

// liveCached sends events and bookmarks until the watch is over.
func (w *watcher) liveCached(f *Following) error {
	f.StartBookmarks(w.deadline)
	defer f.StopBookmarks()
	for {
		changes, err := f.Next(w.ctx)
		if w.ctx.Err() != nil {
			return errStopped
		}
		var expired *bytecache.ExpiredError
		if err != nil && !errors.As(err, &expired) {
			klog.ErrorS(err, "watch ended: its source failed", "group", w.store.resource.Group, "resource", w.store.resource.Resource, "revision", w.reached)
			return errStopped
		}
		if err != nil {
			return err
		}
		if err := w.deliverCached(f, changes); err != nil {
			return err
		}
		if revision, due := f.Bookmark(w.ctx); due {
			if err := w.sendBookmark(revision, false); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) deliverCached(f *Following, changes bytecache.Changes) error {
	for _, c := range changes.List {
		if !f.request.Concerns(c.Key) {
			continue
		}
		event, err := w.eventOf(c.Kind,
			func() (runtime.Object, error) { return w.entry(c.Now, c.Revision) },
			func() (runtime.Object, error) { return w.entry(c.Before, c.Revision) })
		if err != nil {
			return err
		}
		if event.Type == "" {
			continue
		}
		if err := w.send(event); err != nil {
			return err
		}
	}
	w.reached = changes.Revision
	return nil
}

// entry decodes what the cache holds of an object.
func (w *watcher) entry(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	s := w.store
	if e.Err != nil {
		if s.salvage {
			return nil, &unreadableError{reason: untransformable, err: e.Err}
		}
		return nil, e.Err
	}
	obj, err := s.decode(e.Key, e.Data(), revision, nil)
	if err != nil {
		return nil, err
	}
	return obj, nil
}
