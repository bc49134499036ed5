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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/httplog"
	"k8s.io/apiserver/pkg/warning"
)

// bounded gives short requests a deadline, answers for the handlers that miss it, and has
// a shutdown wait for them. It does what WithRequestDeadline,
// WithTimeoutForNonLongRunningRequests and WithWaitGroup of k8s.io/apiserver do, but runs
// the handler where it is called and not in a goroutine of its own: who is late is answered
// for by another one, and the filters in front see the end when the handler has come to it.
// Requests also get their warnings here, which saves another copy of them.
func bounded(handler http.Handler, g *genericapiserver.Config) http.Handler {
	b := &bound{next: handler, timeout: g.RequestTimeout, group: g.NonLongRunningRequestWaitGroup}
	b.asked = genericapifilters.WithRequestDeadline(http.HandlerFunc(b.run), g.AuditBackend, g.AuditPolicyRuleEvaluator,
		g.LongRunningFunc, g.Serializer, g.RequestTimeout)
	uncounted := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { b.serve(&lateWriter{}, w, req) })
	b.closing = genericfilters.WithWaitGroup(uncounted, g.LongRunningFunc, b.group)
	return b
}

type bound struct {
	next    http.Handler
	timeout time.Duration
	group   genericfilters.RequestWaitGroup
	// closing is for requests that the group does not take any more. It refuses most.
	closing http.Handler
	// asked is for requests that may ask for a timeout of their own.
	asked http.Handler
}

// ServeHTTP implements http.Handler.
func (b *bound) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if b.group.Add(1) != nil {
		b.closing.ServeHTTP(w, req)
		return
	}
	late := &lateWriter{group: b.group}
	defer late.leave()
	b.serve(late, w, req)
}

// lateKey is the key of the *lateWriter of a request that may ask for a timeout.
type lateKey struct{}

func (b *bound) serve(late *lateWriter, w http.ResponseWriter, req *http.Request) {
	late.w, late.req = w, req
	ctx := req.Context()
	// A parameter's name may be written with escapes.
	if query := req.URL.RawQuery; strings.Contains(query, "timeout") || strings.Contains(query, "%") {
		b.asked.ServeHTTP(w, req.WithContext(context.WithValue(ctx, lateKey{}, late)))
		return
	}
	began, ok := apirequest.ReceivedTimestampFrom(ctx)
	if !ok {
		began = time.Now()
	}
	ctx, cancel := context.WithDeadline(ctx, began.Add(b.timeout))
	defer cancel()
	b.within(ctx, late, req)
}

// run is within for a request whose context has its deadline.
func (b *bound) run(_ http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	b.within(ctx, ctx.Value(lateKey{}).(*lateWriter), req)
}

// within runs the handler, and has it answered for when its time is over before.
func (b *bound) within(ctx context.Context, late *lateWriter, req *http.Request) {
	late.header, late.kind = maps.Clone(late.w.Header()), req.Header["Content-Type"]
	late.warnings.w = late
	apart := req.ProtoMajor == 2 && !endable(late.w)
	if apart {
		late.answered = make(chan struct{})
	}
	ctx = warning.WithWarningRecorder(ctx, &late.warnings)
	if at, ok := ctx.Deadline(); ok {
		// Whose client has gone is not waited for by anybody until then.
		timer := time.AfterFunc(time.Until(at), func() { late.giveUp(ctx) })
		defer timer.Stop()
	}
	if apart {
		b.apart(ctx, late, req)
		return
	}
	b.handle(ctx, late, req)
}

// apart runs the handler in a goroutine of its own, as upstream does, where an answer ends
// only when the goroutine of its stream returns: with Go's HTTP/2 server.
func (b *bound) apart(ctx context.Context, late *lateWriter, req *http.Request) {
	ended := make(chan any, 1)
	go func() {
		defer func() {
			why := recover()
			if why != nil && why != http.ErrAbortHandler { //nolint:errorlint // net/http compares so
				why = fmt.Sprintf("%v\n%s", why, debug.Stack())
			}
			ended <- why
		}()
		b.handle(ctx, late, req)
	}()
	select {
	case why := <-ended:
		if why != nil {
			panic(why)
		}
	case <-late.answered:
		if late.brokenOff() {
			panic(http.ErrAbortHandler)
		}
	}
}

// handle runs the handler, and accounts for one that was late.
func (b *bound) handle(ctx context.Context, late *lateWriter, req *http.Request) {
	returned := false
	defer func() {
		if late.end(ctx) {
			late.ended(ctx, returned, recover())
		}
	}()
	b.next.ServeHTTP(responsewriter.WrapForHTTP1Or2(late), req.WithContext(ctx))
	returned = true
}

// lateWriter is the writer of a handler that may be late. From the timeout on it is
// nobody's: the real one belongs to who answers for the handler.
type lateWriter struct {
	w http.ResponseWriter
	// group is that of requests a shutdown waits for; nil where this is none of them.
	group genericfilters.RequestWaitGroup
	left  atomic.Bool
	req   *http.Request
	// kind is the Content-Type of req, whose headers are the handler's to change.
	kind []string
	// warnings are those of the handler's answer.
	warnings warnings
	// answered is closed when the handler has been answered for; nil where nobody waits for
	// that.
	answered chan struct{}
	// waits: the handler may be waiting for its client, with mu held. expired: its time is
	// over. Each is set before the other is looked at.
	waits, expired atomic.Bool

	mu sync.Mutex
	// header is what the handler sets, until it writes; guarded by mu, as is all below.
	header http.Header
	// begun: the handler has written a status. taken: it has the connection. over: it has
	// returned.
	begun, taken, over, timedOut bool
	gaveUp                       time.Time
}

var _ responsewriter.UserProvidedDecorator = &lateWriter{}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (l *lateWriter) Unwrap() http.ResponseWriter { return l.w }

// Header implements http.ResponseWriter.
func (l *lateWriter) Header() http.Header {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timedOut {
		return http.Header{}
	}
	return l.header
}

// WriteHeader implements http.ResponseWriter.
func (l *lateWriter) WriteHeader(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timedOut || l.begun || l.taken || !l.mayWaitLocked() {
		return
	}
	defer l.waits.Store(false)
	l.beginLocked()
	l.w.WriteHeader(status)
}

func (l *lateWriter) beginLocked() {
	maps.Copy(l.w.Header(), l.header)
	l.begun = true
}

// Write implements http.ResponseWriter.
func (l *lateWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.timedOut:
		return 0, http.ErrHandlerTimeout
	case l.taken:
		return 0, http.ErrHijacked
	case !l.mayWaitLocked():
		return 0, http.ErrHandlerTimeout
	}
	defer l.waits.Store(false)
	if !l.begun {
		l.beginLocked()
	}
	return l.w.Write(p)
}

// Flush implements http.Flusher. [responsewriter.WrapForHTTP1Or2] shows it only where the
// real writer has it, as it does with those below.
func (l *lateWriter) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.timedOut && l.mayWaitLocked() {
		defer l.waits.Store(false)
		l.w.(http.Flusher).Flush()
	}
}

// mayWaitLocked is called before something that may wait for the client, after which waits
// is to be false. It returns false where there is no time left for that.
func (l *lateWriter) mayWaitLocked() bool {
	l.waits.Store(true)
	if l.expired.Load() {
		l.waits.Store(false)
		return false
	}
	return true
}

// CloseNotify implements http.CloseNotifier.
func (l *lateWriter) CloseNotify() <-chan bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timedOut {
		closed := make(chan bool)
		close(closed)
		return closed
	}
	return l.w.(http.CloseNotifier).CloseNotify() //nolint:staticcheck // what upstream's handlers ask for
}

// Hijack implements http.Hijacker.
func (l *lateWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timedOut {
		return nil, nil, http.ErrHandlerTimeout
	}
	conn, rw, err := l.w.(http.Hijacker).Hijack()
	l.taken = l.taken || err == nil
	return conn, rw, err
}

// leave is called when the request has been answered, and when its handler has ended.
func (l *lateWriter) leave() {
	if l.group != nil && !l.left.Swap(true) {
		l.group.Done()
	}
}

// end is called when the handler has returned, or panicked. It tells whether that was too
// late.
func (l *lateWriter) end(ctx context.Context) (late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.timedOut && !l.begun && !l.taken && ctx.Err() != nil {
		l.giveUpLocked(ctx) // what was to come has not
	}
	l.over = true
	return l.timedOut
}

// lastWords is how long a client may take to read that its request has ended.
const lastWords = time.Second

// giveUp is called when the time of a request is over. A handler whose client does not read
// would wait for ever, and keep its seat of priority and fairness.
func (l *lateWriter) giveUp(ctx context.Context) {
	if l.expired.Store(true); l.waits.Load() {
		l.endBy(time.Now())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && !l.timedOut {
		l.giveUpLocked(ctx)
	}
}

// giveUpLocked answers in the place of a handler that is late: with 504, unless the handler
// has begun to. Then the answer is broken off, so that the client sees that what it has got
// is not the whole.
func (l *lateWriter) giveUpLocked(ctx context.Context) {
	defer l.leave()
	l.timedOut, l.gaveUp = true, time.Now()
	httplog.SetStacktracePredicate(ctx, func(int) bool { return false })
	told := l.req.WithContext(ctx)
	told.Header = http.Header{"Content-Type": l.kind}
	info, _ := apirequest.RequestInfoFrom(ctx)
	metrics.RecordRequestTermination(told, Labels(info), metrics.APIServerComponent, http.StatusGatewayTimeout)
	switch {
	case l.taken:
	case l.begun:
		abort(l.w)
	default:
		l.endBy(time.Now().Add(lastWords))
		if l.req.ProtoMajor == 1 {
			// Another request must not wait for this handler.
			l.w.Header().Set("Connection", "close")
		}
		var body bytes.Buffer
		status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
		_ = json.NewEncoder(&body).Encode(&status) // strings and numbers, into memory
		l.w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
		l.w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = l.w.Write(body.Bytes()) // to a client that may have gone
		end(l.w)
	}
	if l.answered != nil {
		close(l.answered)
	}
}

// endBy ends what waits for the client at a time, where the writer knows of time. HTTP/1.1
// waits for the rest of a body, too, before it answers.
func (l *lateWriter) endBy(t time.Time) {
	controller := http.NewResponseController(l.w)
	_ = controller.SetReadDeadline(t)
	_ = controller.SetWriteDeadline(t)
}

// brokenOff tells whether the handler had begun to answer when its time was over.
func (l *lateWriter) brokenOff() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun || l.taken
}

// ended accounts for a handler that was late. The filters in front hear of an answer that
// was broken off.
func (l *lateWriter) ended(ctx context.Context, returned bool, panicked any) {
	status := metrics.PostTimeoutHandlerOK
	if !returned {
		status = metrics.PostTimeoutHandlerPanic
		panicked = fmt.Sprintf("%v\n%s", panicked, debug.Stack())
	}
	metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, status)
	utilruntime.HandleErrorWithContext(ctx, nil, "A handler has ended after the timeout of its request",
		"after", time.Since(l.gaveUp), "method", l.req.Method, "path", l.req.URL.Path, "panic", panicked)
	if l.begun || l.taken {
		panic(http.ErrAbortHandler)
	}
}

// ending is a writer whose answer can be ended while its handler runs: those of
// [triune.dev/shared/transport/h2] and of requests within the process.
type ending interface {
	End()
	Abort()
}

// endable tells whether a writer is an ending one.
func endable(w http.ResponseWriter) bool {
	_, ok := responsewriter.GetOriginal(w).(ending)
	return ok
}

// end sends all of an answer whose handler still runs.
func end(w http.ResponseWriter) {
	if e, ok := responsewriter.GetOriginal(w).(ending); ok {
		e.End()
	} else if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}

// abort breaks off an answer whose handler still runs.
func abort(w http.ResponseWriter) {
	if e, ok := responsewriter.GetOriginal(w).(ending); ok {
		e.Abort()
	} else if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close() // that it is, is what the client is told
	}
}
