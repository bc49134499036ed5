package etcdstore

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/klog/v2"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/etcdstore/kv"
)

// reconnectPause is the time between two attempts to continue a watch.
const reconnectPause = 250 * time.Millisecond

// watcher is one WATCH. After Watch has returned it belongs to the goroutine of
// run, except for Stop and the reading end of results.
type watcher struct {
	store    *Store
	key      string
	prefix   bool
	selector storage.SelectionPredicate
	progress bool
	plan     watchPlan
	deadline time.Time // zero if none

	ctx     context.Context
	cancel  context.CancelFunc
	results chan watch.Event

	// start is the revision after which live events begin.
	start int64
	// reached: every event at or before it has been sent.
	reached int64
}

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// errStopped ends the goroutine without a word to the client.
var errStopped = errors.New("watch stopped")

// begin settles the revision at which the watch starts, and returns the first
// page of the objects to begin with, if there are any.
func (w *watcher) begin() (kv.Page, error) {
	s := w.store
	if !w.plan.list {
		w.start = w.plan.after
		if w.start > 0 {
			return kv.Page{}, nil
		}
		var err error
		w.start, err = s.currentRevision(w.ctx)
		return kv.Page{}, err
	}
	page, err := w.page("", firstPage, kv.ReadOptions{Serializable: w.plan.anyMember})
	if err == nil && w.plan.anyMember && page.Revision < w.plan.atLeast {
		page, err = w.page("", firstPage, kv.ReadOptions{})
	}
	if err == nil && page.Revision < w.plan.atLeast {
		if s.uncached {
			return kv.Page{}, storage.NewTooLargeResourceVersionError(uint64(w.plan.atLeast), uint64(page.Revision), freshRetryAfter)
		}
		if err := s.awaitRevision(w.ctx, w.plan.atLeast); err != nil {
			return kv.Page{}, err
		}
		page, err = w.page("", firstPage, kv.ReadOptions{})
	}
	w.start = page.Revision
	return page, err
}

func (w *watcher) page(from string, size int64, o kv.ReadOptions) (kv.Page, error) {
	s := w.store
	if !w.prefix {
		item, err := s.get(w.ctx, w.key, o)
		page := kv.Page{Revision: item.Revision}
		if item.KV != nil {
			page.KVs, page.Count = []*kv.KeyValue{item.KV}, 1
		}
		return page, err
	}
	r := kv.PrefixRange(w.key, from)
	r.Limit, r.ReadOptions = size, o
	start := time.Now()
	page, err := s.reader.List(w.ctx, r)
	metrics.RecordEtcdRequest("list", s.resource, err, start)
	return page, err
}

// run is the goroutine of the watch.
func (w *watcher) run(first kv.Page) {
	defer close(w.results)
	defer w.cancel()
	err := w.initial(first)
	// Priority and fairness stops counting the request as starting up.
	flowcontrol.WatchInitialized(w.ctx)
	if err == nil {
		err = w.live()
	}
	w.finish(err)
}

// finish tells the client why the watch is over, where that helps it: a watch
// that ended because etcd is away simply ends, so that the client resumes from
// where it was instead of listing everything again.
func (w *watcher) finish(err error) {
	s := w.store
	var etcdErr rpctypes.EtcdError
	var expired *bytecache.ExpiredError
	switch {
	case err == nil, w.ctx.Err() != nil, errors.Is(err, errStopped):
		return
	case errors.Is(err, rpctypes.ErrCompacted), errors.As(err, &expired):
		klog.V(3).InfoS("watch ended: history is gone", "group", s.resource.Group, "resource", s.resource.Resource, "revision", w.reached)
	case errors.As(err, &etcdErr), status.Code(err) != codes.Unknown:
		klog.ErrorS(err, "watch ended: etcd failed", "group", s.resource.Group, "resource", s.resource.Resource, "revision", w.reached)
		return
	default:
		klog.ErrorS(err, "watch ended", "group", s.resource.Group, "resource", s.resource.Resource, "revision", w.reached)
	}
	// After an error no further event may come, and none does: this goroutine
	// is the only sender and it ends here.
	_ = w.send(w.store.errorEvent(err))
}

// initial sends the objects that exist as ADDED events, and their end.
func (w *watcher) initial(page kv.Page) error {
	if w.plan.list {
		if err := w.added(page); err != nil {
			return err
		}
	}
	w.reached = w.start
	if !w.plan.endBookmark {
		return nil
	}
	return w.sendBookmark(w.start, true)
}

func (w *watcher) added(page kv.Page) error {
	pages := newPager(0)
	for {
		more := page.More()
		last := ""
		pages.after(page)
		for i, item := range page.KVs {
			last = string(item.Key)
			obj, err := w.object(last, item.Value, item.ModRevision)
			if err != nil {
				return err
			}
			if w.matches(obj) {
				if err := w.send(watch.Event{Type: watch.Added, Object: obj}); err != nil {
					return err
				}
			}
			page.KVs[i] = nil
		}
		if !more {
			return nil
		}
		var err error
		page, err = w.page(following([]byte(last)), pages.size, kv.ReadOptions{Revision: w.start})
		if err != nil {
			return w.listError(err)
		}
	}
}

func (w *watcher) listError(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return apierrors.NewResourceExpired(listExpired)
	}
	return err
}

// live sends events and bookmarks until the watch is over.
func (w *watcher) live() error {
	s := w.store
	stream := s.watcher.Watch(w.ctx, kv.WatchOptions{Key: w.key, Prefix: w.prefix, After: w.start, ProgressNotify: w.progress})
	marks := newBookmarkTimer(s.clock, s.bookmarkEvery, w.deadline, w.plan.bookmarks)
	defer marks.stop()
	for {
		select {
		case <-w.ctx.Done():
			return errStopped
		case resp, ok := <-stream.C():
			if !ok {
				return errStopped
			}
			batch, err := stream.Accept(resp)
			if err != nil {
				if err = w.reconnect(stream, err); err != nil {
					return err
				}
				continue
			}
			if err := w.deliver(batch); err != nil {
				return err
			}
			if batch.Progress && marks.due {
				if err := w.mark(marks); err != nil {
					return err
				}
			}
		case <-marks.c():
			if marks.fire() {
				// etcd will not tell in time: what is known has to do.
				if err := w.mark(marks); err != nil {
					return err
				}
				continue
			}
			if err := s.watcher.RequestProgress(w.ctx); err != nil {
				klog.V(3).ErrorS(err, "request for watch progress failed", "group", s.resource.Group, "resource", s.resource.Resource)
			}
		}
	}
}

// mark sends the bookmark that is due. One that says no more than the client
// asked for is left out.
func (w *watcher) mark(marks *bookmarkTimer) error {
	marks.done()
	if w.reached <= w.start {
		return nil
	}
	return w.sendBookmark(w.reached, false)
}

// reconnect waits for etcd to come back after a loss of its leader, which its
// client does not do by itself.
func (w *watcher) reconnect(stream *kv.Stream, cause error) error {
	if !kv.Retriable(cause) {
		return cause
	}
	s := w.store
	giveUp := s.clock.NewTimer(s.reconnectFor)
	defer giveUp.Stop()
	for {
		pause := s.clock.NewTimer(reconnectPause)
		select {
		case <-pause.C():
		case <-giveUp.C():
			pause.Stop()
			return cause
		case <-w.ctx.Done():
			pause.Stop()
			return errStopped
		}
		ctx, cancel := context.WithTimeout(w.ctx, s.freshTimeout)
		_, err := s.currentRevision(ctx)
		cancel()
		if err == nil {
			stream.Reopen()
			return nil
		}
		if w.ctx.Err() != nil {
			return errStopped
		}
	}
}

// deliver sends what a batch means to this watcher.
func (w *watcher) deliver(batch kv.Batch) error {
	s := w.store
	for i := range batch.Events {
		metrics.RecordEtcdEvent(s.resource)
		e := &batch.Events[i]
		if e.Kind != kv.Deleted {
			s.sizes.observe(int64(len(e.Value)), 1, false)
		}
		event, err := w.convert(e)
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
	w.reached = max(w.reached, batch.Revision)
	if batch.Progress {
		metrics.RecordEtcdBookmark(s.resource)
		if w.progress {
			return w.sendBookmark(batch.Revision, false)
		}
	}
	return nil
}

// convert decodes what the selector and the client need of a change.
func (w *watcher) convert(e *kv.Event) (watch.Event, error) {
	return w.eventOf(e.Kind,
		func() (runtime.Object, error) { return w.object(e.Key, e.Value, e.Revision) },
		// The revision is that of the change, as clients expect of DELETED.
		func() (runtime.Object, error) { return w.object(e.Key, e.Previous, e.Revision) })
}

// eventOf is what a change means to the watcher. now and before decode the object
// after and before it.
func (w *watcher) eventOf(kind kv.Kind, now, before func() (runtime.Object, error)) (watch.Event, error) {
	var current, previous runtime.Object
	var err error
	everything := w.selectsEverything()
	if kind != kv.Deleted {
		if current, err = now(); err != nil {
			return watch.Event{}, err
		}
	}
	matched := everything
	if needsPrevious(kind, everything) {
		if previous, err = before(); err != nil {
			var unreadable *unreadableError
			if kind == kv.Deleted && errors.As(err, &unreadable) {
				return watch.Event{}, deletedUnreadable(unreadable)
			}
			return watch.Event{}, err
		}
		matched = w.matches(previous)
	}
	out := Classify(kind, current != nil && w.matches(current), matched)
	if out.Previous {
		current = previous
	}
	return watch.Event{Type: out.Event, Object: current}, nil
}

// object decodes a stored value of an event.
func (w *watcher) object(key string, stored []byte, revision int64) (runtime.Object, error) {
	s := w.store
	data, _, err := s.open(w.ctx, key, stored)
	if err != nil {
		return nil, err
	}
	obj, err := s.decode(key, data, revision, nil)
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
	event, err := w.store.bookmark(revision, end)
	if err != nil {
		return err
	}
	return w.send(event)
}

// send hands an event to the client, however long it takes to read.
func (w *watcher) send(event watch.Event) error {
	select {
	case w.results <- event:
		return nil
	case <-w.ctx.Done():
		return errStopped
	}
}
