package nexttier

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/shared/transport/distrust"
)

const (
	// copySize is the size of the buffers that bodies are copied with, idleSize
	// that of the ones that wait for the next event of a watch, in bytes.
	copyBufferSize = 64 << 10
	idleBufferSize = 4 << 10
)

// auditID is the header auditinternal.HeaderAuditID as net/http spells it.
const auditID = "Audit-Id"

const (
	// slowAfter is how long a client may take to read an answer before it is a slow one.
	slowAfter = time.Second
	// slowAnswers is how many of them one user may have while nobody else has any. Each
	// holds up to answerWindow and copySize bytes.
	slowAnswers = 100
)

var copyBuffers = sync.Pool{New: func() any { return new([copyBufferSize]byte) }}

// exchange is a request that is being answered.
type exchange struct {
	kind kind
	// place is held until all of the answer is here.
	slot *slot
	user user.Info
	// ended reports whether it was this server that ended the body of a stream.
	endedHere func() bool
}

// relay passes a response on. It panics with [http.ErrAbortHandler] when the
// body breaks off: nothing else tells the client that it has not got all.
func (p *Proxy) relay(w http.ResponseWriter, req *http.Request, res *http.Response, x exchange) {
	defer res.Body.Close()
	header := w.Header()
	for name, values := range res.Header {
		switch {
		case isHopByHop(name), name == distrust.Echo:
		case name == "Warning":
			// This tier may have warned as well.
			header[name] = append(header[name], values...)
		case name == auditID && header[name] != nil:
			// The id that this tier has given the request. The next one has another only
			// if this tier asked it something in its own name.
		default:
			// Set, not added: this tier's chain has set some of them too, and the
			// serving tier knows better.
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
		c.flush() // A watch has begun, though nothing may happen for a long time.
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
		// The client has gone, or the server ends its watches: nothing is missing
		// that anybody would miss.
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

// writeError says that it is the client's side that failed.
type writeError struct{ cause error }

func (e *writeError) Error() string { return e.cause.Error() }

func flusher(w http.ResponseWriter) func() {
	if f, ok := w.(http.Flusher); ok {
		return f.Flush
	}
	controller := http.NewResponseController(w)
	// Not supported means that nothing is held back, or that nobody can help it.
	return func() { _ = controller.Flush() }
}

// patience bounds how long a slow client holds its place.
type slowClientTimer struct {
	timer *time.Timer
	// unbound lets the writer wait for the client of the next request on the connection.
	clearDeadline func()
}

// begin is called before the first part of an answer is written that is not all here. A
// client that has not read it within slowAfter holds a share of the slow answers instead
// of its place, if there is one for it, and none has longer than its request.
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

// copying is how a body is copied.
type bodyCopier struct {
	kind kind
	// length is that of the body, or negative.
	length int64
	// flush is called after every write, since what a read returns is what there is.
	flush func()
	// whole is called when all has been read, before the last of it is written. If that is
	// not with the first read, partly is called before.
	onEnd, onPartial func()
}

// copy copies until the end. A stream that is idle holds a small buffer; it gets a large one
// while it fills the small one.
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
