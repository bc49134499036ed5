package nexttier

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/shared/transport/distrust"
)

const (
	// copyBufferSize is the size of copy buffers, and idleBufferSize that of streams without
	// much data, in bytes.
	copyBufferSize = 64 << 10
	idleBufferSize = 4 << 10
)

// auditID is auditinternal.HeaderAuditID in canonical form.
const auditID = "Audit-Id"

const (
	// slowAfter is the time after which a client that does not read is slow.
	slowAfter = time.Second
	// slowAnswers is how many slow responses one user may have while there are no others. Each
	// holds up to responseWindow and copyBufferSize bytes.
	slowAnswers = 100
)

var copyBuffers = sync.Pool{New: func() any { return new([copyBufferSize]byte) }}

// exchange is a request that is being answered.
type exchange struct {
	kind kind
	// slot is held until the whole response has arrived.
	slot *slot
	user user.Info
	span trace.Span
	// endedHere reports whether this server ended the stream.
	endedHere func() bool
}

// relay forwards a response. It panics with [http.ErrAbortHandler] if the body breaks off:
// otherwise the client would take it for complete, which a watch never is.
func (p *Proxy) relay(w http.ResponseWriter, req *http.Request, res *http.Response, x exchange) {
	defer res.Body.Close()
	header := w.Header()
	for name, values := range res.Header {
		switch {
		case isHopByHop(name), name == distrust.EchoHeader:
		case name == "Warning":
			// Keep the warnings of this tier.
			header[name] = append(header[name], values...)
		case name == auditID && header[name] != nil:
			// Keep the audit ID of this tier. The next tier has another one only for
			// requests of the tier itself.
		default:
			// The headers of the serving tier replace those of this tier's handler chain.
			header[name] = values
		}
	}
	var announced []string
	for name := range res.Trailer {
		announced = append(announced, name)
	}
	if announced != nil {
		slices.Sort(announced) // a Pod can announce many
		header["Trailer"] = announced
	}
	w.WriteHeader(res.StatusCode)

	c := bodyCopier{kind: x.kind, length: res.ContentLength, flush: func() {}, onEnd: x.slot.release, onPartial: func() {}}
	if x.kind == stream || res.ContentLength < 0 {
		c.flush = flusher(w)
	}
	if x.kind == stream {
		c.flush() // a watch may have no event for a long time
	} else {
		var reading slowClientTimer
		c.onPartial = func() { reading.start(p, w, req, x) }
		defer reading.stop()
	}
	err := c.copy(w, res.Body)
	var gone *writeError
	switch {
	case err == nil:
	case errors.As(err, &gone), x.kind == stream && (x.endedHere() || errors.Is(req.Context().Err(), context.Canceled)):
		// The client has gone, or the server is ending its watches: nothing is lost.
		return
	case isWatch(req) && res.StatusCode == http.StatusOK:
		// A watch may end at any time, and its client resumes it from the last event. After one
		// that was aborted, client-go lists again.
		p.config.Logger.V(2).Info("watch broke off", "path", req.URL.Path, "err", err)
		return
	default:
		p.config.Logger.V(2).Info("response broke off", "method", req.Method, "path", req.URL.Path, "err", err)
		panic(http.ErrAbortHandler)
	}
	for name, values := range res.Trailer {
		if _, ok := slices.BinarySearch(announced, name); !ok {
			name = http.TrailerPrefix + name
		}
		header[name] = values
	}
}

// writeError is an error of the client's connection.
type writeError struct{ cause error }

func (e *writeError) Error() string { return e.cause.Error() }

func flusher(w http.ResponseWriter) func() {
	if f, ok := w.(http.Flusher); ok {
		return f.Flush
	}
	controller := http.NewResponseController(w)
	// Without support for Flush, nothing can be done.
	return func() { _ = controller.Flush() }
}

// slowClientTimer moves the share of a request to the slow responses.
type slowClientTimer struct {
	timer *time.Timer
	// clearDeadline removes the write deadline before the next request of the connection.
	clearDeadline func()
}

// start is called before the first write of a response that has not arrived completely. After
// slowAfter it moves the request to the slow responses, if they have a free share. The deadline
// of the request bounds the writes.
func (y *slowClientTimer) start(p *Proxy, w http.ResponseWriter, req *http.Request, x exchange) {
	y.timer = time.AfterFunc(slowAfter, func() {
		if slow, ok := p.slowLimits.acquire(x.user, nil); ok {
			x.slot.replace(slow)
		}
	})
	if deadline, ok := req.Context().Deadline(); ok {
		controller := http.NewResponseController(w)
		if controller.SetWriteDeadline(deadline) == nil {
			y.clearDeadline = func() { _ = controller.SetWriteDeadline(time.Time{}) }
		}
	}
}

func (y *slowClientTimer) stop() {
	if y.timer != nil {
		y.timer.Stop()
	}
	if y.clearDeadline != nil {
		y.clearDeadline()
	}
}

// bodyCopier copies a response body.
type bodyCopier struct {
	kind kind
	// length is the length of the body, or negative if unknown.
	length int64
	// flush is called after each write: a read returns all available data.
	flush func()
	// onEnd is called after the last read, before its data is written. onPartial is called
	// after the first read unless it is the last one.
	onEnd, onPartial func()
}

// copy copies the body. A stream uses a small buffer, and a large one only while the data fills
// it.
func (c bodyCopier) copy(w io.Writer, body io.Reader) error {
	var large *[copyBufferSize]byte
	defer func() {
		if large != nil {
			copyBuffers.Put(large)
		}
	}()
	var buffer []byte
	if c.kind == stream {
		buffer = make([]byte, idleBufferSize)
	} else {
		large = copyBuffers.Get().(*[copyBufferSize]byte)
		buffer = large[:]
	}
	small := buffer
	for read := int64(0); ; {
		n, err := body.Read(buffer)
		switch first := read == 0; {
		case err == io.EOF, read+int64(n) == c.length:
			c.onEnd()
		case first && n > 0:
			c.onPartial()
		}
		read += int64(n)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return &writeError{err}
			}
			c.flush()
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case c.kind != stream:
		case large == nil && n == len(buffer):
			large = copyBuffers.Get().(*[copyBufferSize]byte)
			buffer = large[:]
		case large != nil && n <= idleBufferSize:
			copyBuffers.Put(large)
			large, buffer = nil, small
		}
	}
}
