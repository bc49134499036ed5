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

// body is a request body. The connection's mutex guards all fields.
type body struct {
	stream *stream
	// chunks is the unread data; its first chunk is unread from offset.
	chunks              [][]byte
	offset              int
	readable            sync.Cond
	err                 error // returned after chunks; io.EOF at the end
	recvWindow          int64 // of the stream, in bytes
	pendingWindowUpdate int64 // consumed bytes that no WINDOW_UPDATE has returned yet
	contentLength       int64 // -1 if unknown
	received            int64
	trailer             http.Header // announced trailers, until the handler reads io.EOF
	// expectContinue is set while the client waits for 100 Continue.
	expectContinue bool
	// closed is set once the handler has closed the body or the stream has ended. Further data
	// is discarded.
	closed bool
}

// minChunk is the minimum allocation for data, which may arrive byte by byte.
const minChunk = 512

var errStreamClosed = errors.New("h2: the stream is closed")

// handleData handles a DATA frame (RFC 9113, section 6.1).
func (c *conn) handleData(f *http2.DataFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(f.Length) // includes padding
	if c.recvWindow -= size; c.recvWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s, err := c.streamLocked(f.StreamID)
	if err != nil {
		return err
	}
	if s == nil || s.requestEnded {
		c.returnWindowLocked(size)
		if s == nil && (c.wasResetLocked(f.StreamID) || c.goAwaySent) {
			return nil
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	return s.body.receiveLocked(f, size)
}

func (b *body) receiveLocked(f *http2.DataFrame, size int64) error {
	c, p := b.stream.conn, f.Data()
	wrong := func(code http2.ErrCode) error {
		c.returnWindowLocked(size)
		return http2.StreamError{StreamID: b.stream.id, Code: code}
	}
	if b.recvWindow -= size; b.recvWindow < 0 {
		return wrong(http2.ErrCodeFlowControl)
	}
	b.received += int64(len(p))
	if b.contentLength >= 0 && (b.received > b.contentLength || f.StreamEnded() && b.received < b.contentLength) {
		return wrong(http2.ErrCodeProtocol)
	}
	if b.closed {
		c.returnWindowLocked(size)
	} else {
		b.appendLocked(p)
		b.returnWindowLocked(size - int64(len(p)))
	}
	if f.StreamEnded() {
		b.endStreamLocked()
	}
	b.readable.Signal()
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
		b.chunks = append(b.chunks, append(make([]byte, 0, max(len(p), minChunk)), p...))
	}
}

// endStreamLocked handles END_STREAM.
func (b *body) endStreamLocked() {
	b.stream.requestEnded = true
	if b.err == nil {
		b.err = io.EOF
	}
	b.readable.Signal()
}

// handleTrailersLocked ends a body with trailers (RFC 9113, section 8.1). Only announced
// trailers are kept; they count towards the header bytes of the request.
func (s *stream) handleTrailersLocked(f *headerBlock) error {
	switch {
	case s.requestEnded:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case !f.endStream, f.pseudo != pseudoFields{},
		s.body.contentLength >= 0 && s.body.received != s.body.contentLength:
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
	if f.truncated || s.conn.headerBytes+size > maxHeaderLists*int64(f.limit) {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeEnhanceYourCalm}
	}
	s.headerBytes += size
	s.conn.headerBytes += size
	s.body.trailer = trailer
	s.body.endStreamLocked()
	return nil
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	c := b.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.expectContinue {
		b.expectContinue = false
		b.stream.response.sendContinueLocked()
	}
	for len(b.chunks) == 0 || b.closed {
		switch {
		case b.closed && errors.Is(b.err, io.EOF), b.closed && b.err == nil:
			return 0, http.ErrBodyReadAfterClose
		case b.err != nil:
			b.publishTrailersLocked()
			return 0, b.err
		}
		b.readable.Wait()
	}
	if errors.Is(b.err, os.ErrDeadlineExceeded) {
		return 0, b.err
	}
	n := copy(p, b.chunks[0][b.offset:])
	if b.offset += n; b.offset == len(b.chunks[0]) {
		b.chunks[0], b.offset = nil, 0
		b.chunks = b.chunks[1:]
	}
	b.returnWindowLocked(int64(n))
	c.flushAsyncLocked()
	if len(b.chunks) == 0 && errors.Is(b.err, io.EOF) && n > 0 {
		b.publishTrailersLocked()
		return n, io.EOF
	}
	return n, nil
}

// publishTrailersLocked sets the trailers of the request once the handler has read the body:
// until then the handler may use its request without locking.
func (b *body) publishTrailersLocked() {
	if errors.Is(b.err, io.EOF) {
		maps.Copy(b.stream.request.Trailer, b.trailer)
		b.trailer = nil
	}
}

// Close implements [io.Closer]. Data that arrives later is discarded.
func (b *body) Close() error {
	b.stream.conn.mu.Lock()
	defer b.stream.conn.mu.Unlock()
	b.discardLocked()
	return nil
}

func (b *body) discardLocked() {
	if b.closed {
		return
	}
	b.closed = true
	var n int64
	for _, chunk := range b.chunks {
		n += int64(len(chunk))
	}
	n -= int64(b.offset)
	b.chunks, b.offset = nil, 0
	b.stream.conn.returnWindowLocked(n)
	b.readable.Broadcast()
}

// closeLocked ends the body with its stream.
func (b *body) closeLocked() {
	if !b.stream.requestEnded {
		b.err = fmt.Errorf("read the request's body: %w", b.stream.err)
		if errors.Is(b.stream.err, errStreamClosed) {
			b.err = http.ErrBodyReadAfterClose
		}
	}
	b.discardLocked()
}

// returnWindowLocked returns n consumed bytes to the windows of the stream and the connection.
// WINDOW_UPDATE follows once half of a window is consumed.
func (b *body) returnWindowLocked(n int64) {
	c := b.stream.conn
	c.returnWindowLocked(n)
	b.pendingWindowUpdate += n
	if half := int64(c.server.MaxUploadPerStream) / 2; b.pendingWindowUpdate < half || b.stream.requestEnded || b.stream.err != nil {
		return
	}
	b.recvWindow += b.pendingWindowUpdate
	out := c.controlBufferLocked()
	*out = appendWindowUpdate(*out, b.stream.id, int(b.pendingWindowUpdate))
	b.pendingWindowUpdate = 0
}

// returnWindowLocked returns n consumed bytes to the window of the connection.
func (c *conn) returnWindowLocked(n int64) {
	c.pendingWindowUpdate += n
	if c.pendingWindowUpdate < c.server.connWindow()/2 || c.err != nil {
		return
	}
	c.recvWindow += c.pendingWindowUpdate
	out := c.controlBufferLocked()
	*out = appendWindowUpdate(*out, 0, int(c.pendingWindowUpdate))
	c.pendingWindowUpdate = 0
	c.flushAsyncLocked()
}
