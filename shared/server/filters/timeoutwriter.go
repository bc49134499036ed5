package filters

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/httplog"
)

// timeoutWriter is the writer of a handler with a deadline. At the deadline the handler
// loses it, and timeOut answers on the underlying writer.
type timeoutWriter struct {
	w http.ResponseWriter
	// group counts the requests that a shutdown waits for. It is nil for a request that is
	// not counted.
	group     genericfilters.RequestWaitGroup
	leftGroup atomic.Bool
	req       *http.Request
	// contentType is copied from req, whose headers the handler may change.
	contentType []string
	warnings    warnings
	// timedOutCh is closed after the request was answered in place of the handler. It is nil
	// if nobody waits for that.
	timedOutCh chan struct{}
	// blocking is set while the handler may be blocked in a write, with mu held. expired is
	// set at the deadline. Each is set before the other is read.
	blocking, expired atomic.Bool

	mu sync.Mutex // guards the fields below
	// header is the handler's until it writes.
	header                                    http.Header
	wroteHeader, hijacked, returned, timedOut bool
	timedOutAt                                time.Time
}

var _ responsewriter.UserProvidedDecorator = &timeoutWriter{}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (tw *timeoutWriter) Unwrap() http.ResponseWriter { return tw.w }

// Header implements http.ResponseWriter.
func (tw *timeoutWriter) Header() http.Header {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if tw.timedOut {
		return http.Header{}
	}
	return tw.header
}

// WriteHeader implements http.ResponseWriter.
func (tw *timeoutWriter) WriteHeader(status int) {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if tw.timedOut || tw.wroteHeader || tw.hijacked || !tw.mayBlockLocked() {
		return
	}
	defer tw.blocking.Store(false)
	tw.copyHeaderLocked()
	tw.w.WriteHeader(status)
}

func (tw *timeoutWriter) copyHeaderLocked() {
	maps.Copy(tw.w.Header(), tw.header)
	tw.wroteHeader = true
}

// Write implements http.ResponseWriter.
func (tw *timeoutWriter) Write(p []byte) (int, error) {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	switch {
	case tw.timedOut:
		return 0, http.ErrHandlerTimeout
	case tw.hijacked:
		return 0, http.ErrHijacked
	case !tw.mayBlockLocked():
		return 0, http.ErrHandlerTimeout
	}
	defer tw.blocking.Store(false)
	if !tw.wroteHeader {
		tw.copyHeaderLocked()
	}
	return tw.w.Write(p)
}

// Flush implements http.Flusher. [responsewriter.WrapForHTTP1Or2] hides this method and
// those below from the handler if the underlying writer lacks them.
func (tw *timeoutWriter) Flush() {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if !tw.timedOut && tw.mayBlockLocked() {
		defer tw.blocking.Store(false)
		tw.w.(http.Flusher).Flush()
	}
}

// mayBlockLocked is called before an operation that may wait for the client, after which
// the caller resets blocking. It returns false if the deadline has passed.
func (tw *timeoutWriter) mayBlockLocked() bool {
	tw.blocking.Store(true)
	if tw.expired.Load() {
		tw.blocking.Store(false)
		return false
	}
	return true
}

// CloseNotify implements http.CloseNotifier.
func (tw *timeoutWriter) CloseNotify() <-chan bool {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if tw.timedOut {
		closed := make(chan bool)
		close(closed)
		return closed
	}
	return tw.w.(http.CloseNotifier).CloseNotify() //nolint:staticcheck // upstream's handlers call it
}

// Hijack implements http.Hijacker.
func (tw *timeoutWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if tw.timedOut {
		return nil, nil, http.ErrHandlerTimeout
	}
	conn, rw, err := tw.w.(http.Hijacker).Hijack()
	tw.hijacked = tw.hijacked || err == nil
	return conn, rw, err
}

// leaveGroup is called when the request has been answered, and when its handler has
// returned.
func (tw *timeoutWriter) leaveGroup() {
	if tw.group != nil && !tw.leftGroup.Swap(true) {
		tw.group.Done()
	}
}

// finish is called when the handler has returned or panicked. It reports whether that was
// after the deadline.
func (tw *timeoutWriter) finish(ctx context.Context) (late bool) {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if !tw.timedOut && !tw.wroteHeader && !tw.hijacked && ctx.Err() != nil {
		tw.timeOutLocked(ctx) // the handler gave up without an answer
	}
	tw.returned = true
	return tw.timedOut
}

// timeoutAnswerLimit is how long a client may take to read the 504.
const timeoutAnswerLimit = time.Second

// timeOut is called at the deadline. It unblocks a handler whose client does not read,
// which would otherwise wait for ever and hold its seat of priority and fairness.
func (tw *timeoutWriter) timeOut(ctx context.Context) {
	if tw.expired.Store(true); tw.blocking.Load() {
		tw.setDeadline(time.Now())
	}
	tw.mu.Lock()
	defer tw.mu.Unlock()
	if !tw.returned && !tw.timedOut {
		tw.timeOutLocked(ctx)
	}
}

// timeOutLocked answers in place of a late handler: with 504, unless the handler has begun
// its answer. That answer is aborted, so that the client sees that it is incomplete.
func (tw *timeoutWriter) timeOutLocked(ctx context.Context) {
	defer tw.leaveGroup()
	tw.timedOut, tw.timedOutAt = true, time.Now()
	httplog.SetStacktracePredicate(ctx, func(int) bool { return false })
	req := tw.req.WithContext(ctx)
	req.Header = http.Header{"Content-Type": tw.contentType}
	info, _ := apirequest.RequestInfoFrom(ctx)
	metrics.RecordRequestTermination(req, MetricsInfo(info), metrics.APIServerComponent, http.StatusGatewayTimeout)
	switch {
	case tw.hijacked:
	case tw.wroteHeader:
		abort(tw.w)
	default:
		tw.setDeadline(time.Now().Add(timeoutAnswerLimit))
		if tw.req.ProtoMajor == 1 {
			// The next request on the connection must not wait for this handler.
			tw.w.Header().Set("Connection", "close")
		}
		var body bytes.Buffer
		status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
		_ = json.NewEncoder(&body).Encode(&status) // cannot fail
		tw.w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
		tw.w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = tw.w.Write(body.Bytes()) // the client may have gone
		end(tw.w)
	}
	if tw.timedOutCh != nil {
		close(tw.timedOutCh)
	}
}

// setDeadline bounds reads and writes of the client, if the underlying writer supports it.
// HTTP/1.1 also reads the rest of a request body before it answers.
func (tw *timeoutWriter) setDeadline(t time.Time) {
	controller := http.NewResponseController(tw.w)
	_ = controller.SetReadDeadline(t)
	_ = controller.SetWriteDeadline(t)
}

// truncated reports whether the handler had begun its answer at the deadline.
func (tw *timeoutWriter) truncated() bool {
	tw.mu.Lock()
	defer tw.mu.Unlock()
	return tw.wroteHeader || tw.hijacked
}

// recordLate records a handler that was late. If its answer was aborted, it panics to
// tell the filters in front.
func (tw *timeoutWriter) recordLate(ctx context.Context, returned bool, panicked any) {
	status := metrics.PostTimeoutHandlerOK
	if !returned {
		status = metrics.PostTimeoutHandlerPanic
		panicked = fmt.Sprintf("%v\n%s", panicked, debug.Stack())
	}
	metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, status)
	utilruntime.HandleErrorWithContext(ctx, nil, "A handler has ended after the timeout of its request",
		"after", time.Since(tw.timedOutAt), "method", tw.req.Method, "path", tw.req.URL.Path, "panic", panicked)
	if tw.wroteHeader || tw.hijacked {
		panic(http.ErrAbortHandler)
	}
}

// endableWriter is a writer whose answer can end while its handler still runs. The writers
// of [triune.dev/shared/transport/h2] and of requests within the process implement it.
type endableWriter interface {
	End()
	Abort()
}

func isEndable(w http.ResponseWriter) bool {
	_, ok := responsewriter.GetOriginal(w).(endableWriter)
	return ok
}

// end completes an answer whose handler still runs.
func end(w http.ResponseWriter) {
	if e, ok := responsewriter.GetOriginal(w).(endableWriter); ok {
		e.End()
	} else if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}

// abort breaks off an answer whose handler still runs.
func abort(w http.ResponseWriter) {
	if e, ok := responsewriter.GetOriginal(w).(endableWriter); ok {
		e.Abort()
	} else if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close() // the client sees only the closed connection
	}
}
