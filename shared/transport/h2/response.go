package h2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// response is the [http.ResponseWriter] of a stream. The handler's goroutine owns it. It
// implements [http.Flusher], [http.CloseNotifier], which k8s.io/apiserver requires, and the
// methods of [http.ResponseController].
type response struct {
	stream  *stream
	handler http.Handler
	header  http.Header

	status   int             // 0 before WriteHeader
	pending  *pendingHeaders // from WriteHeader until sent
	trailers []string
	declared int64 // Content-Length set by the handler, or -1
	written  int64
	isHEAD   bool

	buf         *[]byte // unsent data, nil if none
	headersSent bool    // written with conn.mu locked, so that other goroutines can read it under conn.mu
	finished    bool    // ended explicitly or by the handler's return
}

var (
	writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeBufferSize); return &b }}
)

// writeBufferSize is the size of the buffer that collects small writes, in bytes.
const writeBufferSize = 4 << 10

var errFinished = errors.New("h2: written after the handler has returned")

func (r *response) init(s *stream, handler http.Handler) {
	r.stream, r.handler, r.declared = s, handler, -1
	r.header = make(http.Header, 8)
	r.isHEAD = s.request.Method == http.MethodHead
}

// Header implements [http.ResponseWriter].
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *response) WriteHeader(status int) {
	if r.status != 0 || r.finished {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	h := r.snapshotHeaders(status)
	if status < 200 {
		_ = r.stream.send(responsePart{headers: h.fields, interim: true, flush: true}) // a later write returns the error
		h.release()
		return
	}
	r.status, r.pending = status, h
	if length := r.header.Get("Content-Length"); length != "" {
		if n, err := strconv.ParseUint(length, 10, 63); err == nil {
			r.declared = int64(n)
		}
	}
	for _, names := range r.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			if key := textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); httpguts.ValidTrailerHeader(key) {
				r.trailers = append(r.trailers, key)
			}
		}
	}
	slices.Sort(r.trailers) // a proxied backend can announce many
	r.trailers = slices.Compact(r.trailers)
	if httpguts.HeaderValuesContainsToken(r.header["Connection"], "close") {
		r.stream.conn.goAway()
	}
}

// Write implements [http.ResponseWriter].
func (r *response) Write(p []byte) (int, error) {
	if err := r.checkWrite(len(p)); err != nil {
		return 0, err
	}
	if r.isHEAD {
		r.sniff(p)
		return len(p), nil
	}
	if r.reserve(len(p)) {
		*r.buf = append(*r.buf, p...)
		return len(p), nil
	}
	if err := r.sendBuffered(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteString implements [io.StringWriter].
func (r *response) WriteString(p string) (int, error) {
	if len(p) > writeBufferSize {
		return r.Write([]byte(p))
	}
	if err := r.checkWrite(len(p)); err != nil {
		return 0, err
	}
	if r.isHEAD {
		r.sniff([]byte(p))
		return len(p), nil
	}
	if !r.reserve(len(p)) {
		if err := r.sendBuffered(nil, false); err != nil {
			return 0, err
		}
		r.reserve(len(p))
	}
	*r.buf = append(*r.buf, p...)
	return len(p), nil
}

// checkWrite returns an error if n more bytes must not be written.
func (r *response) checkWrite(n int) error {
	if r.finished {
		return errFinished
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(r.status) {
		return http.ErrBodyNotAllowed
	}
	r.written += int64(n)
	if r.declared >= 0 && r.written > r.declared {
		return http.ErrContentLength
	}
	return nil
}

// reserve reports whether the buffer has room for n more bytes, and allocates it if necessary.
func (r *response) reserve(n int) bool {
	if r.buf == nil {
		if n > writeBufferSize {
			return false
		}
		r.buf = writeBuffers.Get().(*[]byte)
	}
	return len(*r.buf)+n <= writeBufferSize
}

// sniff retains the beginning of the body of a response to HEAD, to detect its Content-Type.
func (r *response) sniff(p []byte) {
	if !r.headersSent && r.reserve(0) {
		*r.buf = append(*r.buf, p[:min(len(p), writeBufferSize-len(*r.buf))]...)
	}
}

func (r *response) buffered() []byte {
	if r.buf == nil {
		return nil
	}
	return *r.buf
}

// sendBuffered sends the buffered data and p.
func (r *response) sendBuffered(p []byte, flush bool) error {
	send := responsePart{buffered: r.buffered(), data: p, flush: flush}
	if !r.headersSent {
		first := send.buffered
		if len(first) == 0 {
			first = p
		}
		send.headers = r.completeHeaders(first, -1)
	}
	if r.isHEAD {
		send.buffered = nil
	}
	err := r.stream.send(send)
	if r.headersSent {
		r.releaseHeaders()
	}
	r.releaseBuffer()
	return err
}

// TryWrite appends pieces of the body to the output without blocking: all of them, or none if it
// would have to wait for flow control, output room or other writers. They are sent by the
// returned flush at the latest. The handler must have flushed the response and must not use it
// concurrently; any goroutine may then call TryWrite, one at a time.
func (r *response) TryWrite(pieces [][]byte) (flush interface{ Flush() }, ok bool) {
	if !r.headersSent || r.buf != nil || r.isHEAD || r.finished || r.declared >= 0 {
		return nil, false
	}
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if !r.stream.trySend(pieces, size) {
		return nil, false
	}
	r.written += int64(size)
	return r.stream.conn, true
}

func (r *response) releaseHeaders() {
	if r.pending != nil {
		r.pending.release()
		r.pending = nil
	}
}

func (r *response) releaseBuffer() {
	if r.buf != nil {
		*r.buf = (*r.buf)[:0]
		writeBuffers.Put(r.buf)
		r.buf = nil
	}
}

// release releases the buffers of an unfinished response.
func (r *response) release() {
	r.finished = true
	r.releaseHeaders()
	r.releaseBuffer()
}

// Flush implements [http.Flusher].
func (r *response) Flush() { _ = r.FlushError() }

// FlushError flushes the response for [http.ResponseController].
func (r *response) FlushError() error {
	if r.finished {
		return errFinished
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.sendBuffered(nil, true)
}

// End ends the response and closes its stream, which cancels the request context, while the
// handler is still running. Any goroutine may call it, provided that the handler does not use the
// response concurrently or afterwards.
func (r *response) End() { r.finish() }

// Abort resets the stream like a panic of the handler, under the conditions of End.
func (r *response) Abort() { r.stream.abort(http.ErrAbortHandler) }

// finish ends the response after the handler has returned.
func (r *response) finish() {
	if r.finished {
		return
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	body := r.buffered()
	last := responsePart{buffered: body, trailers: r.trailerFields(), end: true, flush: true}
	if !r.headersSent {
		length := int64(len(body))
		if r.isHEAD {
			length = r.written
		}
		if len(last.trailers) > 0 {
			length = -1
		}
		last.headers = r.completeHeaders(body, length)
	}
	if r.isHEAD {
		last.buffered = nil
	}
	_ = r.stream.send(last) // the handler has returned: nobody can handle the error
	r.release()
}

// sendContinueLocked sends 100 Continue, unless the final headers were sent.
func (r *response) sendContinueLocked() {
	if r.headersSent || r.stream.errLocked() != nil {
		return
	}
	c := r.stream.conn
	c.countControlLocked(2 * frameHeader)
	c.appendHeadersLocked(r.stream.id, []hpack.HeaderField{{Name: ":status", Value: "100"}}, false)
	c.flushAsyncLocked()
}

// CloseNotify implements [http.CloseNotifier].
func (r *response) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(r.stream.request.Context(), func() { gone <- true })
	return gone
}

// SetReadDeadline sets the deadline of body reads for [http.ResponseController].
func (r *response) SetReadDeadline(t time.Time) error {
	s := r.stream
	if s.body == nil {
		return nil
	}
	s.setDeadline(&s.readTimer, t, func() {
		if s.body.err == nil {
			s.body.err = os.ErrDeadlineExceeded
		}
		s.body.readable.Broadcast()
	})
	return nil
}

// SetWriteDeadline sets the deadline of the response for [http.ResponseController].
func (r *response) SetWriteDeadline(t time.Time) error {
	r.stream.setDeadline(&r.stream.writeTimer, t, r.stream.writeDeadlineExceededLocked)
	return nil
}

// EnableFullDuplex implements [http.ResponseController]: HTTP/2 is always full-duplex.
func (r *response) EnableFullDuplex() error { return nil }
