package h2

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"sync"

	"golang.org/x/net/http2"
)

// body is what a client sends with a request. All is guarded by the connection's mutex.
type body struct {
	s *stream
	// chunks are what has come and has not been read; of the first one, read bytes have.
	chunks   [][]byte
	read     int
	came     sync.Cond
	err      error // after chunks; io.EOF at the end
	takes    int64 // bytes that the client may send
	consumed int64 // bytes that it has not been told it may send again
	expected int64 // content-length, -1 for none
	received int64
	trailer  http.Header // what has come of those announced; the handler gets it with io.EOF
	// proceed: the client waits for 100 Continue.
	proceed bool
	// closed by the handler, or because the stream is: what comes is dropped.
	closed bool
}

// leastChunk is the least that is allocated for bytes of a body, which may come one by one.
const leastChunk = 512

var errClosed = errors.New("h2: the stream is closed")

// data takes a part of a request's body (RFC 9113, section 6.1).
func (c *conn) data(f *http2.DataFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(f.Length) // with padding
	if c.takes -= size; c.takes < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s, err := c.findLocked(f.StreamID)
	if err != nil {
		return err
	}
	if s == nil || s.allCame {
		c.consumedLocked(size)
		if s == nil && (c.wasResetLocked(f.StreamID) || c.leaving) {
			return nil
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	return s.body.takeLocked(f, size)
}

func (b *body) takeLocked(f *http2.DataFrame, size int64) error {
	c, p := b.s.conn, f.Data()
	wrong := func(code http2.ErrCode) error {
		c.consumedLocked(size)
		return http2.StreamError{StreamID: b.s.id, Code: code}
	}
	if b.takes -= size; b.takes < 0 {
		return wrong(http2.ErrCodeFlowControl)
	}
	b.received += int64(len(p))
	if b.expected >= 0 && (b.received > b.expected || f.StreamEnded() && b.received < b.expected) {
		return wrong(http2.ErrCodeProtocol)
	}
	if b.closed {
		c.consumedLocked(size)
	} else {
		b.appendLocked(p)
		b.consumedLocked(size - int64(len(p)))
	}
	if f.StreamEnded() {
		b.endLocked()
	}
	b.came.Signal()
	return nil
}

func (b *body) appendLocked(p []byte) {
	if n := len(b.chunks); n > 0 {
		last := b.chunks[n-1]
		k := min(cap(last)-len(last), len(p))
		b.chunks[n-1] = append(last, p[:k]...)
		p = p[k:]
	}
	if len(p) > 0 {
		b.chunks = append(b.chunks, append(make([]byte, 0, max(len(p), leastChunk)), p...))
	}
}

// endLocked is called at END_STREAM.
func (b *body) endLocked() {
	b.s.allCame = true
	if b.err == nil {
		b.err = io.EOF
	}
	b.came.Signal()
}

// trailersLocked ends a body (RFC 9113, section 8.1). Only what the request has announced
// is taken over, and counts with its header.
func (s *stream) trailersLocked(f *fieldBlock) error {
	switch {
	case s.allCame:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case !f.ended, f.pseudo != pseudoFields{},
		s.body.expected >= 0 && s.body.received != s.body.expected:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	}
	trailer, size := http.Header{}, int64(0)
	for _, field := range f.regular {
		key := canonical(field.Name)
		if _, announced := s.request.Trailer[key]; announced {
			trailer[key] = append(trailer[key], field.Value)
			size += int64(field.Size())
		}
	}
	if f.truncated || s.conn.heads+size > headLists*int64(f.limit) {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeEnhanceYourCalm}
	}
	s.head += size
	s.conn.heads += size
	s.body.trailer = trailer
	s.body.endLocked()
	return nil
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	c := b.s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.proceed {
		b.proceed = false
		b.s.response.proceedLocked()
	}
	for len(b.chunks) == 0 || b.closed {
		switch {
		case b.closed && errors.Is(b.err, io.EOF), b.closed && b.err == nil:
			return 0, http.ErrBodyReadAfterClose
		case b.err != nil:
			b.handOverLocked()
			return 0, b.err
		}
		b.came.Wait()
	}
	if errors.Is(b.err, os.ErrDeadlineExceeded) {
		return 0, b.err
	}
	n := copy(p, b.chunks[0][b.read:])
	if b.read += n; b.read == len(b.chunks[0]) {
		b.chunks[0], b.read = nil, 0
		b.chunks = b.chunks[1:]
	}
	b.consumedLocked(int64(n))
	c.flushLaterLocked()
	if len(b.chunks) == 0 && errors.Is(b.err, io.EOF) && n > 0 {
		b.handOverLocked()
		return n, io.EOF
	}
	return n, nil
}

// handOverLocked gives trailers to the handler, which may use its request until then.
func (b *body) handOverLocked() {
	if errors.Is(b.err, io.EOF) {
		maps.Copy(b.s.request.Trailer, b.trailer)
		b.trailer = nil
	}
}

// Close implements [io.Closer]. What comes later is dropped.
func (b *body) Close() error {
	b.s.conn.mu.Lock()
	defer b.s.conn.mu.Unlock()
	b.dropLocked()
	return nil
}

func (b *body) dropLocked() {
	if b.closed {
		return
	}
	b.closed = true
	var n int64
	for _, chunk := range b.chunks {
		n += int64(len(chunk))
	}
	n -= int64(b.read)
	b.chunks, b.read = nil, 0
	b.s.conn.consumedLocked(n)
	b.came.Broadcast()
}

// closeLocked is called when the stream is closed.
func (b *body) closeLocked() {
	if !b.s.allCame {
		b.err = fmt.Errorf("read the request's body: %w", b.s.err)
		if errors.Is(b.s.err, errClosed) {
			b.err = http.ErrBodyReadAfterClose
		}
	}
	b.dropLocked()
}

// consumedLocked lets the client send n bytes more, when they are many.
func (b *body) consumedLocked(n int64) {
	c := b.s.conn
	c.consumedLocked(n)
	b.consumed += n
	if half := int64(c.server.MaxUploadPerStream) / 2; b.consumed < half || b.s.allCame || b.s.err != nil {
		return
	}
	b.takes += b.consumed
	out := c.controlLocked()
	*out = appendWindowUpdate(*out, b.s.id, int(b.consumed))
	b.consumed = 0
}

// consumedLocked lets the client send n bytes more on the connection, when they are many.
func (c *conn) consumedLocked(n int64) {
	c.consumed += n
	if c.consumed < c.server.window()/2 || c.err != nil {
		return
	}
	c.takes += c.consumed
	out := c.controlLocked()
	*out = appendWindowUpdate(*out, 0, int(c.consumed))
	c.consumed = 0
	c.flushLaterLocked()
}
