package reads

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
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

	"triune.dev/shared/bytecache"
	"triune.dev/shared/etcdstore"
	"triune.dev/shared/etcdstore/kv"
)

// watchStream is one WATCH. It belongs to the goroutine of its handler, or while that waits
// for changes to who pushes them ([watchStream.Push]), and owns no memory but itself: what it
// sends is shared, and a buffer is borrowed while several frames are put together.
type watchStream struct {
	// What a push needs is together: hundreds of streams are pushed to, one after another,
	// and hardly any of them is in the processor's cache.

	*watches
	// direct is nil where others than the handler's goroutine cannot write.
	direct directWriter
	// selects is nil where everything is wanted.
	selects *plan
	media   watchMedia
	// reached: the changes at or before it have been written, and so have skip more.
	reached int64
	skip    int
	count   compbasemetrics.CounterMetric
	sizes   compbasemetrics.ObserverMetric
	request etcdstore.WatchRequest

	ctx     context.Context
	w       http.ResponseWriter
	flusher http.Flusher
	// scope labels the metric of the initial events.
	scope string

	cancel context.CancelFunc
	follow *etcdstore.Following
	// failed is what kept the watch from beginning.
	failed error
	// headed: the first event of a Table watch has been made.
	headed bool
	// held are the changes that a write is in the way of.
	held atomic.Pointer[[]*bytecache.Change]
	// dirty: something was written after the last flush.
	dirty bool
}

// run sends the stream.
func (s *watchStream) run() {
	s.measure()
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

// measure finds the metrics that upstream counts events with. Those of a request that is
// traced name it.
func (s *watchStream) measure() {
	m := s.metrics()
	s.count, s.sizes = m.events, m.sizes
	if trace.SpanContextFromContext(s.ctx).IsSampled() {
		resource := s.config.Scope.Resource
		s.sizes = metrics.WatchEventsSizes.WithContext(s.ctx).WithLabelValues(resource.Group, resource.Version, resource.Resource)
	}
}

var chunked = []string{"chunked"}

// errGone ends a stream without a word: the client is gone, the time is up, or the
// server shuts down.
var errGone = errors.New("watch is over")

// lostError is that of a source which is away. A client that is not told so resumes
// from where it was, instead of listing everything again.
type lostError struct{ error }

// finish tells the client why the stream is over, where that helps it.
func (s *watchStream) finish(err error) {
	var lost lostError
	switch {
	case s.ctx.Err() != nil, errors.Is(err, errGone):
		return
	case errors.As(err, &lost):
		klog.ErrorS(err, "watch ended: its source failed", "resource", s.config.Scope.Resource, "revision", s.reached)
		return
	}
	klog.V(3).InfoS("watch ended", "resource", s.config.Scope.Resource, "revision", s.reached, "err", err)
	frame, err := s.frames.object(s.media, watch.Error, s.Store.ErrorStatus(err))
	if err == nil && s.write(frame, 1) == nil {
		s.flush()
	}
}

// initial sends the objects that exist, and their end.
func (s *watchStream) initial() error {
	var err error
	s.reached = s.follow.Start
	b := borrowFrames()
	defer func() { b.free() }()
	events := 0
	s.follow.Initial(func(e *bytecache.Entry) bool {
		var wanted bool
		if wanted, err = s.wants(e); err != nil || !wanted {
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

// initialized records how long the initial events took, as upstream does.
func (s *watchStream) initialized() {
	received, ok := request.ReceivedTimestampFrom(s.ctx)
	if !ok {
		return
	}
	latency := time.Since(received)
	metrics.RecordWatchListLatency(s.ctx, s.config.Scope.Resource, s.scope, latency)
	httplog.AddKeyValue(s.ctx, "watchlist_init_latency", latency)
}

// live sends what happens until the watch is over.
func (s *watchStream) live() error {
	var shutdown <-chan struct{}
	if signals := request.ServerShutdownSignalFrom(s.ctx); signals != nil {
		shutdown = signals.ShuttingDown()
		s.closing.join(shutdown, s.follow)
		defer s.closing.leave(shutdown, s.follow)
	}
	deadline, _ := s.ctx.Deadline()
	s.follow.StartBookmarks(deadline)
	defer s.follow.StopBookmarks()
	if direct, ok := responsewriter.GetOriginal(s.w).(directWriter); ok && s.media.table == nil {
		s.direct = direct
		s.follow.PushTo(s)
	}
	for {
		changes, err := s.follow.Next(s.ctx)
		select {
		case <-shutdown:
			return errGone
		default:
		}
		if err != nil {
			var expired *bytecache.ExpiredError
			if !errors.As(err, &expired) {
				err = lostError{err}
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
		if revision, due := s.follow.Bookmark(s.ctx); due {
			if err := s.bookmark(revision, false); err != nil {
				return err
			}
		}
		s.flush()
	}
}

const (
	// frameChunk is about how much is written at once. It is also what a client that
	// does not read makes this process hold.
	frameChunk = 16 << 10
	// letGoAfter is how long a write may take before the changes after it are let go
	// of. They are read again if the client goes on, maybe from history.
	letGoAfter = time.Second
)

// directWriter is a response that can be written to without waiting for the client, and
// while its handler sleeps; package h2 has one.
type directWriter interface {
	// TryWrite takes all of the pieces and returns true, or nothing and returns false. They
	// are sent when flush is called, or before.
	TryWrite(pieces [][]byte) (flush interface{ Flush() }, ok bool)
}

// pushedMost is how many changes are pushed at once; more are worth waking a goroutine.
const pushedMost = 8

// Push implements bytecache.Pusher: it does what deliver does, without its goroutine.
func (s *watchStream) Push(changes bytecache.Changes, batch *bytecache.Batch) bool {
	if len(changes.List) > pushedMost || s.skip > 0 {
		return false
	}
	pieces := batch.Pieces[:0]
	for _, c := range changes.List {
		event, err := s.event(c)
		if err != nil {
			return false // to be told to the client
		}
		if event == nothing {
			continue
		}
		frame, err := s.frames.change(c, s.media.format, event)
		if err != nil {
			return false
		}
		pieces = append(pieces, frame)
	}
	batch.Pieces = pieces
	if len(pieces) > 0 {
		flush, ok := s.direct.TryWrite(pieces)
		if !ok {
			return false
		}
		batch.Flush(flush)
		s.count.Add(float64(len(pieces)))
		for _, frame := range pieces {
			s.sizes.Observe(float64(len(frame)))
		}
	}
	s.reached = changes.Revision
	return true
}

// deliver writes what the changes mean to the client. It returns false if it had to
// let go of them before the end; then it has set the cursor back to where it was.
func (s *watchStream) deliver(changes bytecache.Changes) (whole bool, err error) {
	list, at := changes.List, min(s.skip, len(changes.List))
	for {
		part, err := s.gather(list, at)
		at = part.next
		if err != nil || at == len(list) {
			failed := s.writePart(part)
			if failed != nil || err != nil {
				return false, cmp.Or(failed, err)
			}
			if len(list) > 0 {
				s.skip = 0
			}
			s.reached = changes.Revision
			return true, nil
		}
		s.note(list, at-1)
		if list, err = s.writeHolding(part, list); err != nil {
			return false, err
		}
		if list == nil {
			if err := s.follow.Rewind(s.ctx, s.reached); err != nil {
				return false, lostError{err}
			}
			return false, nil
		}
	}
}

// part is what is written at once.
type part struct {
	// bytes are one frame, which is shared, or several in the borrowed buffer.
	bytes    []byte
	borrowed *frameBuffer
	events   int
	// next is the index of the first change that is not in it.
	next int
}

// gather puts frames together until there are enough for one write. The part is
// valid also where there is an error.
func (s *watchStream) gather(list []*bytecache.Change, at int) (p part, err error) {
	for p.next = at; p.next < len(list) && len(p.bytes) < frameChunk; p.next++ {
		c := list[p.next]
		event, err := s.event(c)
		switch {
		case err != nil:
			return p, err
		case event == nothing:
			continue
		}
		before := len(p.bytes)
		if s.media.table != nil {
			err = s.gatherRow(&p, c, event)
		} else {
			err = s.gatherFrame(&p, c, event)
		}
		if err != nil {
			return p, err
		}
		p.events++
		s.sizes.Observe(float64(len(p.bytes) - before))
	}
	return p, nil
}

// gatherFrame adds a frame that is kept. One by itself is not copied.
func (s *watchStream) gatherFrame(p *part, c *bytecache.Change, event int) error {
	frame, err := s.frames.change(c, s.media.format, event)
	switch {
	case err != nil:
		return err
	case p.events == 0:
		p.bytes = frame
		return nil
	case p.borrowed == nil:
		p.borrowed = borrowFrames()
		p.bytes = append(p.borrowed.bytes, p.bytes...)
	}
	p.bytes = append(p.bytes, frame...)
	p.borrowed.bytes = p.bytes
	return nil
}

// gatherRow adds a frame around a row that is kept.
func (s *watchStream) gatherRow(p *part, c *bytecache.Change, event int) error {
	if p.borrowed == nil {
		p.borrowed = borrowFrames()
		p.bytes = p.borrowed.bytes
	}
	var err error
	p.bytes, err = s.appendRow(p.bytes, typeOf[event], shown(c, event), c.Revision)
	p.borrowed.bytes = p.bytes
	return err
}

func (s *watchStream) writePart(p part) error {
	var err error
	if p.events > 0 {
		err = s.write(p.bytes, p.events)
	}
	if p.borrowed != nil {
		p.borrowed.free()
	}
	return err
}

// writeHolding writes and returns the list, or nil if that took too long: whoever
// does not read must not keep in memory what the log has forgotten.
func (s *watchStream) writeHolding(p part, list []*bytecache.Change) ([]*bytecache.Change, error) {
	s.held.Store(&list)
	release := time.AfterFunc(letGoAfter, func() { s.held.Store(nil) })
	defer release.Stop()
	if err := s.writePart(p); err != nil {
		return nil, err
	}
	if held := s.held.Swap(nil); held != nil {
		return *held, nil
	}
	return nil, nil
}

// note remembers that all up to the change at an index of the list is written.
func (s *watchStream) note(list []*bytecache.Change, at int) {
	revision := list[at].Revision
	if list[at+1].Revision != revision {
		s.reached, s.skip = revision, 0
		return
	}
	first := at
	for first > 0 && list[first-1].Revision == revision {
		first--
	}
	s.reached, s.skip = revision-1, at-first+1
}

// event tells what a change is to this client.
func (s *watchStream) event(c *bytecache.Change) (int, error) {
	if !s.request.Concerns(c.Key) {
		return nothing, nil
	}
	now, before := c.Kind != kv.Deleted, c.Kind != kv.Created
	if s.selects != nil {
		var err error
		if now {
			if now, err = s.meets(s.selects, c.Now); err != nil {
				return nothing, err
			}
		}
		if before {
			if before, err = s.meets(s.selects, c.Before); err != nil {
				return nothing, err
			}
		}
	}
	switch etcdstore.Classify(c.Kind, now, before).Event {
	case watch.Added:
		return added, nil
	case watch.Modified:
		return modified, nil
	case watch.Deleted:
		return deleted, nil
	}
	return nothing, nil
}

func (s *watchStream) wants(e *bytecache.Entry) (bool, error) {
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
	s.dirty = true
	if _, err := s.w.Write(p); err != nil {
		return errGone
	}
	return nil
}

func (s *watchStream) flush() {
	if s.dirty {
		s.dirty = false
		s.flusher.Flush()
	}
}

// frameBuffer holds several frames until they are written.
type frameBuffer struct{ bytes []byte }

var frameBuffers = sync.Pool{New: func() any { return &frameBuffer{bytes: make([]byte, 0, frameChunk+8<<10)} }}

func borrowFrames() *frameBuffer { return frameBuffers.Get().(*frameBuffer) }

func (b *frameBuffer) free() {
	if cap(b.bytes) <= 8*frameChunk {
		b.bytes = b.bytes[:0]
		frameBuffers.Put(b)
	}
}
