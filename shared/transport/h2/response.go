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

// response is the [http.ResponseWriter] of a stream. It belongs to the goroutine of the
// handler, and can be flushed, told of the end of the connection ([http.CloseNotifier],
// which k8s.io/apiserver wants), and used with [http.ResponseController].
type response struct {
	stream  *stream
	handler http.Handler
	header  http.Header

	status   int             // 0 before WriteHeader
	pending  *pendingHeaders // of WriteHeader, until it is sent
	trailers []string
	declared int64 // content-length by the handler, -1 for none
	written  int64
	isHEAD   bool

	buf         *[]byte // of pieces; nil for none
	headersSent bool    // the head is; set with conn.mu held, under which others than the handler read it
	finished    bool    // it has been ended, or its handler has returned
}

var (
	writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeBufferSize); return &b }}
)

// piece is the size in bytes up to which what a handler writes is gathered until it
// flushes or returns.
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
		_ = r.stream.send(responsePart{headers: h.fields, interim: true, flush: true}) // that the client is gone is told by the next one
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
	slices.Sort(r.trailers) // there may be as many as a header of somebody behind us has room for
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

// count checks that n more bytes may be written.
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

// fits tells whether n more bytes can be gathered, and has a buffer for them.
func (r *response) reserve(n int) bool {
	if r.buf == nil {
		if n > writeBufferSize {
			return false
		}
		r.buf = writeBuffers.Get().(*[]byte)
	}
	return len(*r.buf)+n <= writeBufferSize
}

// keep gathers what the answer to HEAD does not send: its Content-Type is told by it.
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

// forward gives what has been gathered, and p, to the connection.
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

// TryWrite gives pieces of the body to the connection, all of them or, where that would
// have to wait for the client or for others, none. They are sent when flush is called, or
// before. It may be called in any goroutine, by one at a time and while the handler does
// not use the response, which it must have flushed.
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

// drop gives back what a response holds that is not finished.
func (r *response) release() {
	r.finished = true
	r.releaseHeaders()
	r.releaseBuffer()
}

// Flush implements [http.Flusher].
func (r *response) Flush() { _ = r.FlushError() } // the interface has no error

// FlushError is what [http.ResponseController] calls.
func (r *response) FlushError() error {
	if r.finished {
		return errFinished
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.sendBuffered(nil, true)
}

// End ends the response while the handler still runs. It may be called in any goroutine, if
// the handler does not use the response at the same time, nor afterwards; the stream is
// closed then, and the context of its request ends.
func (r *response) End() { r.finish() }

// Abort resets the stream, as a handler that panics does. What is said of End holds.
func (r *response) Abort() { r.stream.abort(http.ErrAbortHandler) }

// finish ends the response when the handler has returned.
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
	_ = r.stream.send(last) // nobody is left to hear of it
	r.release()
}

// proceedLocked sends 100 Continue, unless the final head is on its way.
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

// SetReadDeadline is what [http.ResponseController] calls.
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

// SetWriteDeadline is what [http.ResponseController] calls.
func (r *response) SetWriteDeadline(t time.Time) error {
	r.stream.setDeadline(&r.stream.writeTimer, t, r.stream.writeDeadlineExceededLocked)
	return nil
}

// EnableFullDuplex is what [http.ResponseController] calls: HTTP/2 always is.
func (r *response) EnableFullDuplex() error { return nil }
