package etcdstore

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/keywatch"
	"triune.dev/shared/storage/kv"
)

// watcher is a WATCH whose events are decoded objects, for callers in this process and for
// resources whose bytes cannot be sent. After Watch has returned, the goroutine of run owns
// it, except for Stop and the receiving end of results.
type watcher struct {
	store    *Store
	request  keywatch.Request
	selector storage.SelectionPredicate
	deadline time.Time // zero if none

	ctx     context.Context
	cancel  context.CancelFunc
	results chan watch.Event

	// reached is the revision up to which all events have been sent.
	reached int64
}

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// errStopped ends the goroutine without an ERROR event.
var errStopped = errors.New("watch stopped")

// run sends the events of the watch. It runs in a goroutine of its own.
func (w *watcher) run(keys *keywatch.Watch) {
	defer close(w.results)
	defer w.cancel()
	err := w.initial(keys)
	// Priority and fairness stops counting the request as starting up.
	flowcontrol.WatchInitialized(w.ctx)
	if err == nil {
		err = w.live(keys)
	}
	w.finish(err)
}

// finish sends an ERROR event for err, unless the source is unavailable: without an event the
// client resumes the watch instead of listing everything again.
func (w *watcher) finish(err error) {
	s := w.store
	var expired *bytecache.ExpiredError
	switch {
	case err == nil, w.ctx.Err() != nil, errors.Is(err, errStopped):
		return
	case errors.As(err, &expired):
		klog.V(3).InfoS("watch ended: history is gone", "group", s.resource.Group, "resource", s.resource.Resource, "revision", w.reached)
	case status.Code(err) != codes.Unknown:
		klog.ErrorS(err, "watch ended: its source failed", "group", s.resource.Group, "resource", s.resource.Resource, "revision", w.reached)
		return
	default:
		klog.ErrorS(err, "watch ended", "group", s.resource.Group, "resource", s.resource.Resource, "revision", w.reached)
	}
	// After an error no further event may come, and none does: this goroutine
	// is the only sender and it ends here.
	_ = w.send(s.errorEvent(err))
}

// initial sends ADDED events for the existing objects, and the bookmark at their end.
func (w *watcher) initial(keys *keywatch.Watch) error {
	w.reached = keys.Start
	var err error
	keys.Initial(func(e *bytecache.Entry) bool {
		var obj runtime.Object
		if obj, err = w.object(e, e.Revision); err == nil && w.matches(obj) {
			err = w.send(watch.Event{Type: watch.Added, Object: obj})
		}
		return err == nil
	})
	if err != nil || !w.request.EndBookmark {
		return err
	}
	return w.sendBookmark(keys.Start, true)
}

// live sends events and bookmarks until the watch ends.
func (w *watcher) live(keys *keywatch.Watch) error {
	keys.StartBookmarks(w.deadline)
	defer keys.StopBookmarks()
	for {
		changes, err := keys.Next(w.ctx)
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
		if err := w.deliver(changes); err != nil {
			return err
		}
		if revision, due := keys.Bookmark(w.ctx); due {
			if err := w.sendBookmark(revision, false); err != nil {
				return err
			}
		}
	}
}

// deliver sends the events of changes.
func (w *watcher) deliver(changes bytecache.Changes) error {
	for _, c := range changes.List {
		if !w.request.Concerns(c.Key) {
			continue
		}
		event, err := w.event(c)
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

// event returns the event of a change. It decodes only the objects that the selector and the
// event need.
func (w *watcher) event(c *bytecache.Change) (watch.Event, error) {
	var current, previous runtime.Object
	var err error
	everything := w.selectsEverything()
	if c.Kind != kv.Deleted {
		if current, err = w.object(c.Now, c.Revision); err != nil {
			return watch.Event{}, err
		}
	}
	matched := everything
	if needsPrevious(c.Kind, everything) {
		// The revision is that of the change, as clients expect of DELETED.
		if previous, err = w.object(c.Before, c.Revision); err != nil {
			var unreadable *unreadableError
			if c.Kind == kv.Deleted && errors.As(err, &unreadable) {
				return watch.Event{}, deletedUnreadable(unreadable)
			}
			return watch.Event{}, err
		}
		matched = w.matches(previous)
	}
	out := keywatch.Classify(c.Kind, current != nil && w.matches(current), matched)
	if out.Previous {
		current = previous
	}
	return watch.Event{Type: out.Event, Object: current}, nil
}

// object decodes a cached object and sets its resourceVersion to revision.
func (w *watcher) object(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	s := w.store
	if e.Err != nil {
		if s.reportCorrupt {
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

func (w *watcher) selectsEverything() bool {
	return w.selector.Empty() && (w.selector.ShardSelector == nil || w.selector.ShardSelector.Empty())
}

func (w *watcher) matches(obj runtime.Object) bool {
	matched, err := w.selector.Matches(obj)
	return err == nil && matched
}

func (w *watcher) sendBookmark(revision int64, end bool) error {
	obj, err := w.request.BookmarkObject(revision, end)
	if err != nil {
		return err
	}
	return w.send(watch.Event{Type: watch.Bookmark, Object: obj})
}

// send sends an event and waits until it is received.
func (w *watcher) send(event watch.Event) error {
	select {
	case w.results <- event:
		return nil
	case <-w.ctx.Done():
		return errStopped
	}
}

// needsPrevious reports whether the previous object has to be decoded: a DELETED event
// shows it, and a selector is judged by it.
func needsPrevious(kind kv.Kind, everything bool) bool {
	switch kind {
	case kv.Deleted:
		return true
	case kv.Modified:
		return !everything
	default:
		return false
	}
}
