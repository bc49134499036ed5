package delegate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"

	"triune.dev/shared/authn/distrust"
)

const (
	// copySize is the size of the buffers that bodies are copied with, idleSize
	// that of the ones that wait for the next event of a watch, in bytes.
	copySize = 64 << 10
	idleSize = 4 << 10
)

// auditID is the header auditinternal.HeaderAuditID as net/http spells it.
const auditID = "Audit-Id"

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// relay passes a response on. It panics with [http.ErrAbortHandler] when the
// body breaks off: nothing else tells the client that it has not got all. ended
// reports whether it was this server that ended the body.
func (p *Proxy) relay(w http.ResponseWriter, req *http.Request, res *http.Response, k kind, ended func() bool) {
	defer res.Body.Close()
	header := w.Header()
	for name, values := range res.Header {
		switch {
		case hopByHop(name), name == distrust.Echo:
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
		header["Trailer"] = announced
	}
	w.WriteHeader(res.StatusCode)

	flush := func() {}
	if k == stream || res.ContentLength < 0 {
		flush = flusher(w)
	}
	if k == stream {
		flush() // A watch has begun, though nothing may happen for a long time.
	}
	err := copyBody(w, res.Body, flush, k)
	var gone *writeError
	switch {
	case err == nil:
	case errors.As(err, &gone), ended(), k == stream && errors.Is(req.Context().Err(), context.Canceled):
		// The client has gone, or the server ends its watches: nothing is missing
		// that anybody would miss.
		return
	default:
		p.config.Logger.V(2).Info("response broke off", "method", req.Method, "path", req.URL.Path, "err", err)
		panic(http.ErrAbortHandler)
	}
	for name, values := range res.Trailer {
		if !slices.Contains(announced, name) {
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

// copyBody copies until the end and calls flush after every read, since what a
// read returns is what there is. A stream that is idle holds a small buffer; it
// gets a large one while it fills the small one.
func copyBody(w io.Writer, body io.Reader, flush func(), k kind) error {
	var large *[copySize]byte
	defer func() {
		if large != nil {
			copyBuffers.Put(large)
		}
	}()
	var buffer []byte
	if k == stream {
		buffer = make([]byte, idleSize)
	} else {
		large = copyBuffers.Get().(*[copySize]byte)
		buffer = large[:]
	}
	small := buffer
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return &writeError{err}
			}
			flush()
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case k != stream:
		case large == nil && n == len(buffer):
			large = copyBuffers.Get().(*[copySize]byte)
			buffer = large[:]
		case large != nil && n <= idleSize:
			copyBuffers.Put(large)
			large, buffer = nil, small
		}
	}
}
