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

	// All below is guarded by conn.mu.

	err       error // why the stream is closed, of both sides
	requestEnded   bool  // END_STREAM by the client
	windowDelta     int64 // bytes of DATA that the client takes beyond conn.initial, less those sent
	headerBytes      int64 // bytes of the header list
	wake      sync.Cond
	inSendQueue    bool
	queued     bool  // for a handler of another stream to end
	body      *body // nil for requests without
	readTimer *time.Timer
	writeTimer *time.Timer
}

// headers opens a stream, or ends the body of one (RFC 9113, sections 5.1 and 8.1).
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
		return nil // the client knows that it is not answered
	case c.err != nil:
		return c.err // nobody would end it
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

// windowLocked is how many bytes of DATA the client takes; less than 0 where SETTINGS have
// taken back what was used already.
func (s *stream) sendWindowLocked() int64 { return s.conn.initialWindow + s.windowDelta }

// forgottenLocked is called when nobody holds the request of the stream any more.
func (s *stream) releaseHeadersLocked() {
	s.conn.headerBytes -= s.headerBytes
	s.headerBytes = 0
}

// startLocked runs the handler of a stream, or lets it wait where a client has reset
// streams whose handlers still run.
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

// aborted resets the stream of a handler that has panicked or ended its goroutine.
func (s *stream) abort(why any) {
	c := s.conn
	if why != nil && why != http.ErrAbortHandler { //nolint:errorlint // net/http compares so
		stack := make([]byte, 64<<10)
		stack = stack[:runtime.Stack(stack, false)]
		klog.Background().Error(nil, "handler has panicked", "client", c.remote, "panic", why, "stack", string(stack))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.response.release()
	if s.err == nil {
		c.resetStreamLocked(s.id, http2.ErrCodeInternal)
	}
	c.flushLocked()
}

// handlerDone lets the next one run.
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
			continue // reset while it waited
		}
		c.runningHandlers++
		s.queued = false
		c.server.workers.do(s)
		return
	}
}

// failedLocked is why nothing may be sent any more, or nil.
func (s *stream) errLocked() error {
	if s.err != nil {
		return s.err
	}
	return s.conn.err
}

// endLocked is called when all of the response is in the output.
func (s *stream) responseSentLocked() {
	if s.requestEnded {
		s.closeLocked(errStreamClosed)
		return
	}
	// The client need not send the rest (RFC 9113, section 8.1).
	s.conn.resetStreamLocked(s.id, http2.ErrCodeNo)
}

// closeLocked forgets a stream. Whoever waits for it is woken.
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
	if s.queued { // it never runs, and may wait long yet
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

// deadline arms a timer of the stream, which calls f with the mutex held.
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
		if *timer == armed && s.err == nil { // it may have been set anew meanwhile
			f()
		}
	})
	*timer = armed
}

// tooLateLocked ends a stream whose time to be written is over.
func (s *stream) writeDeadlineExceededLocked() {
	s.closeLocked(os.ErrDeadlineExceeded)
	s.conn.resetStreamLocked(s.id, http2.ErrCodeInternal)
	s.conn.flushAsyncLocked()
}
