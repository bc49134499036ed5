package loopback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"

	"k8s.io/klog/v2"
)

// exchange is one request and its response. The handler's goroutine owns the fields of the
// response until ready is closed, and the client's goroutine owns them afterwards. pipe and
// requestBody have their own locks.
type exchange struct {
	pipe        pipe
	requestBody requestBody
	response    http.Response

	// ready is closed once response or failure is final.
	ready   chan struct{}
	failure error

	// cancel cancels the handler's context. stopWatching stops watching the client's context;
	// it is called once the client has the whole response.
	cancel       context.CancelFunc
	stopWatching func() bool
}

func newExchange(req *http.Request) *exchange {
	e := &exchange{ready: make(chan struct{})}
	e.pipe.init()
	if req.Body != nil && req.Body != http.NoBody {
		e.requestBody.source = req.Body
	}
	e.response = http.Response{Proto: "HTTP/2.0", ProtoMajor: 2, Request: req, Body: (*responseBody)(e)}
	return e
}

// serve runs the handler and ends the exchange however the handler ends: by a return, a panic,
// or runtime.Goexit.
func (e *exchange) serve(handler http.Handler, in *http.Request) {
	w := &responseWriter{exchange: e, header: http.Header{}, isHead: in.Method == http.MethodHead, ctx: in.Context(), declared: -1}
	returned := false
	defer func() {
		if !returned {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
				klog.ErrorS(fmt.Errorf("%v", cause), "handler panicked", "method", in.Method, "path", in.URL.Path, "stack", string(debug.Stack()))
			}
		}
		w.finish(returned)
		_ = e.requestBody.Close()
		e.cancel()
	}()
	handler.ServeHTTP(w, in)
	returned = true
}

// abort ends the exchange because the client has gone away.
func (e *exchange) abort(cause error) {
	e.pipe.closeRead(cause)
	_ = e.requestBody.Close()
	e.cancel()
}

// responseBody is the client's end of the pipe.
type responseBody exchange

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.pipe.read(p)
	if err != nil {
		b.stopWatching()
	}
	return n, err
}

// Close discards the unread body and lets the handler know.
func (b *responseBody) Close() error {
	b.stopWatching()
	(*exchange)(b).abort(errBodyClosed)
	return nil
}

// errBodyClosed is returned by the client's further reads and the handler's further writes. The
// text is that of net/http.
var errBodyClosed = errors.New("http: read on closed response body")

// requestBody is the handler's view of the client's body. It is usable until either side closes
// it, and closes its source exactly once.
type requestBody struct {
	// source is set before the exchange starts and never changes.
	source io.ReadCloser

	mu     sync.Mutex
	closed bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	// Do not hold the lock: a read may wait for the client, and Close must end it.
	return b.source.Read(p)
}

func (b *requestBody) Close() error {
	if b.source == nil {
		return nil
	}
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return nil
	}
	return b.source.Close()
}

// responseWriter is the handler's end. Like any [http.ResponseWriter] it must be used by one
// goroutine at a time.
//
// It implements the deprecated [http.CloseNotifier], as the HTTP/2 server's writer does,
// because the API server's wrappers offer [http.Flusher] only for writers that have both.
// Without it no watch could be served.
type responseWriter struct {
	exchange *exchange
	ctx      context.Context
	header   http.Header
	isHead   bool

	wroteHeader bool
	published   bool
	ended       bool
	bodyless    bool
	// declared is the handler's Content-Length, or -1; written counts the bytes written so far.
	declared, written int64

	closeNotify chan bool
}

var _ interface {
	http.ResponseWriter
	http.Flusher
	io.StringWriter
} = (*responseWriter)(nil)

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(code int) {
	if w.wroteHeader || code >= 100 && code < 200 {
		return
	}
	if code < 100 || code > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", code))
	}
	w.wroteHeader = true
	w.bodyless = code == http.StatusNoContent || code == http.StatusNotModified
	if value := w.header.Get("Content-Length"); value != "" {
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n >= 0 {
			w.declared = n
		}
	}
	r := &w.exchange.response
	r.StatusCode = code
	r.Status = statusLine(code)
	// Clone it, because handlers continue to use theirs.
	r.Header = w.header.Clone()
}

func (w *responseWriter) Write(p []byte) (int, error) {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if w.bodyless {
		return 0, http.ErrBodyNotAllowed
	}
	if h := w.exchange.response.Header; !w.published && w.written == 0 && len(p) > 0 && h["Content-Type"] == nil && h["Content-Encoding"] == nil {
		h.Set("Content-Type", http.DetectContentType(p))
	}
	switch {
	case w.isHead:
		return len(p), nil
	case w.declared >= 0 && w.written+int64(len(p)) > w.declared:
		return 0, http.ErrContentLength
	}
	if !w.published && !w.exchange.pipe.fits(len(p)) {
		w.publish(w.declared)
	}
	n, err := w.exchange.pipe.write(p)
	w.written += int64(n)
	return n, err
}

func (w *responseWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush sends the header and wakes the client to read what was written.
func (w *responseWriter) Flush() {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	w.publish(w.declared)
	w.exchange.pipe.flush()
}

// CloseNotify implements [http.CloseNotifier]; see the type's comment.
func (w *responseWriter) CloseNotify() <-chan bool {
	if w.closeNotify == nil {
		w.closeNotify = make(chan bool, 1)
		context.AfterFunc(w.ctx, func() { w.closeNotify <- true })
	}
	return w.closeNotify
}

// publish passes the response to the client, once.
func (w *responseWriter) publish(length int64) {
	if w.published {
		return
	}
	w.published = true
	w.exchange.response.ContentLength = length
	close(w.exchange.ready)
}

// End ends the response while the handler still runs. The handler must not use it afterwards.
func (w *responseWriter) End() { w.finish(true) }

// Abort aborts the response while the handler still runs. The handler must not use it
// afterwards.
func (w *responseWriter) Abort() { w.finish(false) }

// finish ends the response: complete if the handler returned, and aborted if not. Only the
// first call has an effect.
func (w *responseWriter) finish(returned bool) {
	if w.ended {
		return
	}
	w.ended = true
	if !returned {
		w.exchange.pipe.closeWrite(io.ErrUnexpectedEOF)
		if !w.published {
			w.exchange.failure = fmt.Errorf("the handler gave up the request: %w", io.ErrUnexpectedEOF)
			w.publish(0)
		}
		return
	}
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	end := io.EOF
	length := w.declared
	switch {
	case w.isHead:
	case w.bodyless:
		length = 0
	case w.declared > w.written:
		end = io.ErrUnexpectedEOF
	default:
		length = w.written
	}
	w.exchange.pipe.closeWrite(end)
	w.publish(length)
}

// statusLine returns the status line. Common codes do not allocate.
func statusLine(code int) string {
	switch code {
	case http.StatusOK:
		return "200 OK"
	case http.StatusCreated:
		return "201 Created"
	}
	return strconv.Itoa(code) + " " + http.StatusText(code)
}
