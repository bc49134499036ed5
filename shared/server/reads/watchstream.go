package reads

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/server/httplog"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/keywatch"
	"triune.dev/shared/storage/kv"
)

// watchStream is one WATCH. It is owned by the goroutine of its handler or, while that
// waits for changes, by the pusher ([watchStream.Push]). It needs little memory: frames are
// shared, and a pooled buffer is used to join several frames.
type watchStream struct {
	// The fields for a push come first, in adjacent memory: hundreds of streams are pushed to
	// in turn, and hardly any of them is in the processor's cache.

	*watches
	// direct is nil if only the handler's goroutine can write.
	direct directWriter
	// selects is nil if all objects are selected.
	selects *plan
	media   watchMedia
	// The changes up to reached have been written, and skip changes of the next revision.
	reached int64
	skip    int
	count   compbasemetrics.CounterMetric
	sizes   compbasemetrics.ObserverMetric
	request keywatch.Request

	ctx     context.Context
	w       http.ResponseWriter
	flusher http.Flusher
	// scope labels the metric of the initial events.
	scope string

	cancel context.CancelFunc
	// watch yields the initial objects and the changes.
	watch *keywatch.Watch
	// failed is the error that kept the watch from beginning.
	failed error
	// columnsSent says that the first event of a Table watch, which has the columns, was
	// encoded.
	columnsSent bool
	// pending are the changes that wait for a write to return.
	pending atomic.Pointer[[]*bytecache.Change]
	// unflushed says that something was written since the last flush.
	unflushed bool
}

// run sends the stream.
func (s *watchStream) run() {
	s.initMetrics()
	header := s.w.Header()
	header["Content-Type"] = s.media.contentType
	header["Transfer-Encoding"] = chunked
	s.w.WriteHeader(http.StatusOK)
	s.flusher.Flush()
	err := s.failed
	if err == nil {
		err = s.initial()
	}
	// Priority and fairness stops counting the request as starting up.
	flowcontrol.WatchInitialized(s.ctx)
	if err == nil {
		err = s.live()
	}
	if err != nil {
		s.finish(err)
	}
}

// initMetrics sets the metrics with which upstream counts events. Traced requests are their
// exemplars.
func (s *watchStream) initMetrics() {
	m := s.metrics()
	s.count, s.sizes = m.events, m.sizes
	if trace.SpanContextFromContext(s.ctx).IsSampled() {
		resource := s.config.Scope.Resource
		s.sizes = metrics.WatchEventsSizes.WithContext(s.ctx).WithLabelValues(resource.Group, resource.Version, resource.Resource)
	}
}

var chunked = []string{"chunked"}

// errClosed ends a stream without an error event: the client has gone, its time is up, or
// the server shuts down.
var errClosed = errors.New("watch is over")

// sourceError is the error of an unavailable source. The stream ends without an error
// event, so that the client resumes at its revision instead of listing again.
type sourceError struct{ error }

// finish sends an error event if that helps the client.
func (s *watchStream) finish(err error) {
	var lost sourceError
	switch {
	case s.ctx.Err() != nil, errors.Is(err, errClosed):
		return
	case errors.As(err, &lost):
		klog.ErrorS(err, "watch ended: its source failed", "resource", s.config.Scope.Resource, "revision", s.reached)
		return
	}
	klog.V(3).InfoS("watch ended", "resource", s.config.Scope.Resource, "revision", s.reached, "err", err)
	frame, err := s.frames.object(s.media, watch.Error, s.Source.Status(err))
	if err == nil && s.write(frame, 1) == nil {
		s.flush()
	}
}

// initial sends the existing objects, and the bookmark after them.
func (s *watchStream) initial() error {
	var err error
	s.reached = s.watch.Start
	b := newFrameBuffer()
	defer func() { b.free() }()
	events := 0
	s.watch.Initial(func(e *bytecache.Entry) bool {
		var wanted bool
		if wanted, err = s.selected(e); err != nil || !wanted {
			return err == nil
		}
		before := len(b.bytes)
		if s.media.table != nil {
			b.bytes, err = s.appendRow(b.bytes, watch.Added, e, e.Revision)
		} else {
			b.bytes, err = s.frames.appendEntry(b.bytes, s.media, watch.Added, e, e.Revision)
		}
		if err != nil {
			b.bytes = b.bytes[:before]
			return false
		}
		s.sizes.Observe(float64(len(b.bytes) - before))
		events++
		if len(b.bytes) >= frameChunk {
			err = s.write(b.bytes, events)
			b.bytes, events = b.bytes[:0], 0
		}
		return err == nil
	})
	if len(b.bytes) > 0 {
		if failed := s.write(b.bytes, events); failed != nil {
			return failed
		}
	}
	if err != nil {
		return err
	}
	if s.request.EndBookmark {
		if err := s.bookmark(s.reached, true); err != nil {
			return err
		}
		defer s.initialized()
	}
	s.flush()
	return nil
}

// initialized records the latency of the initial events, as upstream does.
func (s *watchStream) initialized() {
	received, ok := request.ReceivedTimestampFrom(s.ctx)
	if !ok {
		return
	}
	latency := time.Since(received)
	metrics.RecordWatchListLatency(s.ctx, s.config.Scope.Resource, s.scope, latency)
	httplog.AddKeyValue(s.ctx, "watchlist_init_latency", latency)
}

// live sends changes until the watch ends.
func (s *watchStream) live() error {
	var shuttingDown <-chan struct{}
	if signal := request.ServerShutdownSignalFrom(s.ctx); signal != nil {
		shuttingDown = signal.ShuttingDown()
		s.shutdowns.Add(shuttingDown, s.watch)
		defer s.shutdowns.Remove(shuttingDown, s.watch)
	}
	deadline, _ := s.ctx.Deadline()
	s.watch.StartBookmarks(deadline)
	defer s.watch.StopBookmarks()
	if direct, ok := responsewriter.GetOriginal(s.w).(directWriter); ok && s.media.table == nil {
		s.direct = direct
		s.watch.PushTo(s)
	}
	for {
		changes, err := s.watch.Next(s.ctx)
		select {
		case <-shuttingDown:
			return errClosed
		default:
		}
		if err != nil {
			var expired *bytecache.ExpiredError
			if !errors.As(err, &expired) {
				err = sourceError{err}
			}
			return err
		}
		whole, err := s.deliver(changes)
		if err != nil {
			return err
		}
		if !whole {
			continue
		}
		if revision, due := s.watch.Bookmark(s.ctx); due {
			if err := s.bookmark(revision, false); err != nil {
				return err
			}
		}
		s.flush()
	}
}

// classify returns the event of a change for this client.
func (s *watchStream) classify(c *bytecache.Change) (int, error) {
	if !s.request.Concerns(c.Key) {
		return noEvent, nil
	}
	now, before := c.Kind != kv.Deleted, c.Kind != kv.Created
	if s.selects != nil {
		var err error
		if now {
			if now, err = s.meets(s.selects, c.Now); err != nil {
				return noEvent, err
			}
		}
		if before {
			if before, err = s.meets(s.selects, c.Before); err != nil {
				return noEvent, err
			}
		}
	}
	switch keywatch.Classify(c.Kind, now, before).Event {
	case watch.Added:
		return added, nil
	case watch.Modified:
		return modified, nil
	case watch.Deleted:
		return deleted, nil
	}
	return noEvent, nil
}

func (s *watchStream) selected(e *bytecache.Entry) (bool, error) {
	if s.selects == nil {
		return true, nil
	}
	return s.meets(s.selects, e)
}

func (s *watchStream) bookmark(revision int64, end bool) error {
	var frame []byte
	var err error
	if s.media.table != nil {
		frame, err = s.tableBookmark(revision, end)
	} else {
		frame, err = s.frames.bookmark(s.media, &s.request, revision, end)
	}
	if err != nil {
		return err
	}
	s.sizes.Observe(float64(len(frame)))
	return s.write(frame, 1)
}

func (s *watchStream) write(p []byte, events int) error {
	s.count.Add(float64(events))
	s.unflushed = true
	if _, err := s.w.Write(p); err != nil {
		return errClosed
	}
	return nil
}

func (s *watchStream) flush() {
	if s.unflushed {
		s.unflushed = false
		s.flusher.Flush()
	}
}
