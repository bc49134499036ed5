package chain

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
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
)

// bounded gives short requests a deadline, answers for the handlers that miss it, and has
// a shutdown wait for them. It does what WithRequestDeadline and
// WithTimeoutForNonLongRunningRequests of k8s.io/apiserver do, and copies a request once
// for both, of its headers no more than the map.
func bounded(handler http.Handler, g *genericapiserver.Config) http.Handler {
	b := &bound{next: handler, timeout: g.RequestTimeout}
	b.asked = genericapifilters.WithRequestDeadline(http.HandlerFunc(b.run), g.AuditBackend, g.AuditPolicyRuleEvaluator,
		g.LongRunningFunc, g.Serializer, g.RequestTimeout)
	return genericfilters.WithWaitGroup(b, g.LongRunningFunc, g.NonLongRunningRequestWaitGroup)
}

type bound struct {
	next http.Handler
	// asked is for requests that may ask for a timeout of their own.
	asked   http.Handler
	timeout time.Duration
	workers workers
}

// ServeHTTP implements http.Handler.
func (b *bound) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	// A parameter's name may be written with escapes.
	if query := req.URL.RawQuery; strings.Contains(query, "timeout") || strings.Contains(query, "%") {
		b.asked.ServeHTTP(w, req)
		return
	}
	ctx := req.Context()
	began, ok := apirequest.ReceivedTimestampFrom(ctx)
	if !ok {
		began = time.Now()
	}
	ctx, cancel := context.WithDeadline(ctx, began.Add(b.timeout))
	defer cancel()
	b.within(ctx, w, req)
}

// run is within for a request whose context has its deadline.
func (b *bound) run(w http.ResponseWriter, req *http.Request) { b.within(req.Context(), w, req) }

// within waits for the handler, but no longer than for the end of ctx.
func (b *bound) within(ctx context.Context, w http.ResponseWriter, req *http.Request) {
	// A handler that is late goes on after the answer, beside those around here who still
	// look at the request and the writer.
	own := req.WithContext(ctx)
	own.Header = maps.Clone(req.Header)
	late := &lateWriter{w: w, header: maps.Clone(w.Header())}
	ended := make(chan any, 1)
	b.workers.do(work{b.handle, responsewriter.WrapForHTTP1Or2(late), own, ended})
	select {
	case panicked := <-ended:
		if panicked != nil {
			panic(panicked)
		}
	case <-ctx.Done():
		giveUp(ctx, late, req, ended)
	}
}

// handle sends what the handler has panicked with, or nil, when it returns.
func (b *bound) handle(w http.ResponseWriter, req *http.Request, ended chan<- any) {
	defer func() {
		panicked := recover()
		if panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // net/http compares so
			stack := make([]byte, 64<<10)
			panicked = fmt.Sprintf("%v\n%s", panicked, stack[:runtime.Stack(stack, false)])
		}
		ended <- panicked
	}()
	b.next.ServeHTTP(w, req)
}

// giveUp answers in the place of a handler that is late.
func giveUp(ctx context.Context, w *lateWriter, req *http.Request, ended <-chan any) {
	began, method, path := time.Now(), req.Method, req.URL.Path
	// Also where the answer is to panic.
	defer func() {
		go func() {
			panicked := <-ended
			status := metrics.PostTimeoutHandlerOK
			if panicked != nil {
				status = metrics.PostTimeoutHandlerPanic
			}
			metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, status)
			utilruntime.HandleErrorWithContext(ctx, nil, "A handler has ended after the timeout of its request",
				"after", time.Since(began), "method", method, "path", path, "panic", panicked)
		}()
	}()
	httplog.SetStacktracePredicate(ctx, func(int) bool { return false })
	info, _ := apirequest.RequestInfoFrom(ctx)
	defer metrics.RecordRequestTermination(req, info, metrics.APIServerComponent, http.StatusGatewayTimeout)
	w.timeOut()
}

// lateWriter is the writer of a handler that may be late. From the timeout on it is
// nobody's: the real one belongs to the server again.
type lateWriter struct {
	w http.ResponseWriter

	mu sync.Mutex
	// header is what the handler sets, until it writes; guarded by mu, as is all below.
	header http.Header
	// begun: the handler has written a status. taken: it has the connection.
	begun, taken, timedOut bool
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
	if l.timedOut || l.begun || l.taken {
		return
	}
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
	case !l.begun:
		l.beginLocked()
	}
	return l.w.Write(p)
}

// Flush implements http.Flusher. [responsewriter.WrapForHTTP1Or2] shows it only where the
// real writer has it, as it does with those below.
func (l *lateWriter) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.timedOut {
		l.w.(http.Flusher).Flush()
	}
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

// timeOut answers with 504, unless the handler has begun to: then it panics, so that the
// client sees that what it has got is not the whole.
func (l *lateWriter) timeOut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timedOut = true
	if l.begun || l.taken {
		panic(http.ErrAbortHandler)
	}
	status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
	l.w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(l.w).Encode(&status) // to a client that may have gone
}
