package h2

import (
	"context"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"
)

// stream is a request and its response.
type stream struct {
	conn     *conn
	id       uint32
	request  *http.Request
	cancel   context.CancelFunc
	response response

	// The fields below are guarded by conn.mu.

	err          error // why both sides are closed
	requestEnded bool  // the client has sent END_STREAM
	windowDelta  int64 // the send window is conn.initialWindow+windowDelta
	headerBytes  int64 // size of the header list and trailers
	wake         sync.Cond
	inSendQueue  bool
	queued       bool  // waiting for a running handler to end
	body         *body // nil without a request body
	readTimer    *time.Timer
	writeTimer   *time.Timer
}

// handleHeaders opens a stream, or ends a request body with trailers (RFC 9113, sections 5.1
// and 8.1).
func (c *conn) handleHeaders(f *headerBlock) error {
	id := f.id
	if f.dependsOnItself {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		return s.handleTrailersLocked(f)
	}
	switch {
	case id%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case id <= c.lastStreamID && c.wasResetLocked(id):
		return nil
	case id <= c.lastStreamID:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	case c.goAwaySent:
		return nil // GOAWAY has told the client that this stream is not processed
	case c.err != nil:
		return c.err // the connection no longer closes its streams
	}
	c.lastStreamID = id
	size := int64(f.limit - f.remaining)
	if len(c.streams) >= c.server.MaxConcurrentStreams || c.headerBytes > 0 && c.headerBytes+size > maxHeaderLists*int64(f.limit) {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	s := &stream{conn: c, id: id, headerBytes: size, wake: sync.Cond{L: &c.mu}}
	handler := c.handler
	if f.truncated {
		handler = http.HandlerFunc(headersTooLarge)
	}
	if err := s.newRequest(f); err != nil {
		return err
	}
	s.response.init(s, handler)
	c.streams[id] = s
	c.headerBytes += size
	return c.startHandlerLocked(s)
}

// sendWindowLocked returns the send window of the stream, in bytes. It is negative after the
// client has lowered SETTINGS_INITIAL_WINDOW_SIZE below what was already sent.
func (s *stream) sendWindowLocked() int64 { return s.conn.initialWindow + s.windowDelta }

// releaseHeadersLocked returns the header bytes of the stream to the connection's budget. The
// request must no longer be referenced.
func (s *stream) releaseHeadersLocked() {
	s.conn.headerBytes -= s.headerBytes
	s.headerBytes = 0
}

// startHandlerLocked starts the handler of a stream. It queues the stream while handlers of
// streams that the client has reset occupy all places.
func (c *conn) startHandlerLocked(s *stream) error {
	if c.runningHandlers < c.server.MaxConcurrentStreams {
		c.runningHandlers++
		c.server.workers.do(s)
		return nil
	}
	if len(c.queuedStreams) >= maxQueuedPerStream*c.server.MaxConcurrentStreams {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	s.queued = true
	c.queuedStreams = append(c.queuedStreams, s)
	return nil
}

func (s *stream) run() {
	returned := false
	defer func() {
		if !returned {
			s.abort(recover())
		}
		s.conn.handlerDone(s)
	}()
	s.response.handler.ServeHTTP(&s.response, s.request)
	s.response.finish()
	returned = true
}

// abort resets the stream of a handler that panicked or called [runtime.Goexit].
func (s *stream) abort(reason any) {
	c := s.conn
	if reason != nil && reason != http.ErrAbortHandler { //nolint:errorlint // net/http compares so
		stack := make([]byte, 64<<10)
		stack = stack[:runtime.Stack(stack, false)]
		klog.Background().Error(nil, "handler has panicked", "client", c.remote, "panic", reason, "stack", string(stack))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.response.release()
	if s.err == nil {
		c.resetStreamLocked(s.id, http2.ErrCodeInternal)
	}
	c.flushLocked()
}

// handlerDone releases the place of a handler and starts the next queued one.
func (c *conn) handlerDone(done *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done.releaseHeadersLocked()
	c.runningHandlers--
	for len(c.queuedStreams) > 0 {
		s := c.queuedStreams[0]
		c.queuedStreams[0] = nil
		c.queuedStreams = c.queuedStreams[1:]
		if s.err != nil {
			s.response.release()
			continue // reset while queued
		}
		c.runningHandlers++
		s.queued = false
		c.server.workers.do(s)
		return
	}
}

// errLocked returns why nothing can be sent any more, or nil.
func (s *stream) errLocked() error {
	if s.err != nil {
		return s.err
	}
	return s.conn.err
}

// responseSentLocked closes the stream once the whole response is in the output.
func (s *stream) responseSentLocked() {
	if s.requestEnded {
		s.closeLocked(errStreamClosed)
		return
	}
	// The client may stop sending the request (RFC 9113, section 8.1).
	s.conn.resetStreamLocked(s.id, http2.ErrCodeNo)
}

// closeLocked closes both sides of a stream and wakes all goroutines that wait for it.
func (s *stream) closeLocked(err error) {
	if s.err != nil {
		return
	}
	c := s.conn
	s.err = err
	delete(c.streams, s.id)
	s.cancel()
	s.wake.Signal()
	if s.body != nil {
		s.body.closeLocked()
	}
	if s.queued { // it will never run, but may stay queued for long
		s.request, s.body = nil, nil
		s.releaseHeadersLocked()
	}
	if s.readTimer != nil {
		s.readTimer.Stop()
	}
	if s.writeTimer != nil {
		s.writeTimer.Stop()
	}
	if len(c.streams) == 0 && c.err == nil {
		c.lastActive = time.Now()
		if c.goAwaySent {
			c.closeSoonLocked()
		}
	}
}

// setDeadline sets a timer that calls f with the mutex locked.
func (s *stream) setDeadline(timer **time.Timer, t time.Time, f func()) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	if t.IsZero() || s.err != nil {
		return
	}
	var armed *time.Timer
	armed = time.AfterFunc(time.Until(t), func() {
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		if *timer == armed && s.err == nil { // the timer may have been reset or stopped meanwhile
			f()
		}
	})
	*timer = armed
}

// writeDeadlineExceededLocked resets a stream whose write deadline has passed.
func (s *stream) writeDeadlineExceededLocked() {
	s.closeLocked(os.ErrDeadlineExceeded)
	s.conn.resetStreamLocked(s.id, http2.ErrCodeInternal)
	s.conn.flushAsyncLocked()
}
