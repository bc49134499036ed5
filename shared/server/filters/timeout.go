package filters

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/warning"
)

// withTimeout gives short requests a deadline, answers in place of handlers that miss it,
// and makes a shutdown wait for them. It does the work of WithRequestDeadline,
// WithTimeoutForNonLongRunningRequests and WithWaitGroup of k8s.io/apiserver, but runs the
// handler in the goroutine that calls it: a timer's goroutine answers in its place, and the
// filters in front return when the handler does. Requests also get their warning recorder
// here, which saves another copy of them.
func withTimeout(handler http.Handler, g *genericapiserver.Config) http.Handler {
	h := &timeoutHandler{next: handler, timeout: g.RequestTimeout, group: g.NonLongRunningRequestWaitGroup}
	h.customTimeout = genericapifilters.WithRequestDeadline(http.HandlerFunc(h.serveCustomTimeout), g.AuditBackend, g.AuditPolicyRuleEvaluator,
		g.LongRunningFunc, g.Serializer, g.RequestTimeout)
	ungrouped := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { h.serve(&timeoutWriter{}, w, req) })
	h.shuttingDown = genericfilters.WithWaitGroup(ungrouped, g.LongRunningFunc, h.group)
	return h
}

type timeoutHandler struct {
	next    http.Handler
	timeout time.Duration
	group   genericfilters.RequestWaitGroup
	// shuttingDown serves requests that the group no longer accepts. It refuses most.
	shuttingDown http.Handler
	// customTimeout serves requests that may have a timeout parameter.
	customTimeout http.Handler
}

// ServeHTTP implements http.Handler.
func (h *timeoutHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.group.Add(1) != nil {
		h.shuttingDown.ServeHTTP(w, req)
		return
	}
	tw := &timeoutWriter{group: h.group}
	defer tw.leaveGroup()
	h.serve(tw, w, req)
}

// writerKey is the context key of the *timeoutWriter of a request for customTimeout.
type writerKey struct{}

func (h *timeoutHandler) serve(tw *timeoutWriter, w http.ResponseWriter, req *http.Request) {
	tw.w, tw.req = w, req
	ctx := req.Context()
	// The name of a query parameter may be percent-encoded.
	if query := req.URL.RawQuery; strings.Contains(query, "timeout") || strings.Contains(query, "%") {
		h.customTimeout.ServeHTTP(w, req.WithContext(context.WithValue(ctx, writerKey{}, tw)))
		return
	}
	received, ok := apirequest.ReceivedTimestampFrom(ctx)
	if !ok {
		received = time.Now()
	}
	ctx, cancel := context.WithDeadline(ctx, received.Add(h.timeout))
	defer cancel()
	h.serveUntilDeadline(ctx, tw, req)
}

// serveCustomTimeout handles a request to which WithRequestDeadline has given a deadline.
func (h *timeoutHandler) serveCustomTimeout(_ http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	h.serveUntilDeadline(ctx, ctx.Value(writerKey{}).(*timeoutWriter), req)
}

// serveUntilDeadline runs the handler, and has the request answered at its deadline if the
// handler is late.
func (h *timeoutHandler) serveUntilDeadline(ctx context.Context, tw *timeoutWriter, req *http.Request) {
	tw.header, tw.contentType = maps.Clone(tw.w.Header()), req.Header["Content-Type"]
	tw.warnings.w = tw
	detached := req.ProtoMajor == 2 && !isEndable(tw.w)
	if detached {
		tw.timedOutCh = make(chan struct{})
	}
	ctx = warning.WithWarningRecorder(ctx, &tw.warnings)
	if deadline, ok := ctx.Deadline(); ok {
		// Not context.AfterFunc: a client that goes away cancels the context earlier.
		timer := time.AfterFunc(time.Until(deadline), func() { tw.timeOut(ctx) })
		defer timer.Stop()
	}
	if detached {
		h.handleDetached(ctx, tw, req)
		return
	}
	h.handle(ctx, tw, req)
}

// handleDetached runs the handler in a goroutine of its own, as k8s.io/apiserver does. Go's
// HTTP/2 server needs that: it ends an answer only when the goroutine of the stream returns.
func (h *timeoutHandler) handleDetached(ctx context.Context, tw *timeoutWriter, req *http.Request) {
	done := make(chan any, 1)
	go func() {
		defer func() {
			reason := recover()
			if reason != nil && reason != http.ErrAbortHandler { //nolint:errorlint // net/http compares so
				reason = fmt.Sprintf("%v\n%s", reason, debug.Stack())
			}
			done <- reason
		}()
		h.handle(ctx, tw, req)
	}()
	select {
	case reason := <-done:
		if reason != nil {
			panic(reason)
		}
	case <-tw.timedOutCh:
		if tw.truncated() {
			panic(http.ErrAbortHandler)
		}
	}
}

// handle runs the handler, and records one that was late.
func (h *timeoutHandler) handle(ctx context.Context, tw *timeoutWriter, req *http.Request) {
	returned := false
	defer func() {
		if tw.finish(ctx) {
			tw.recordLate(ctx, returned, recover())
		}
	}()
	h.next.ServeHTTP(responsewriter.WrapForHTTP1Or2(tw), req.WithContext(ctx))
	returned = true
}
