package nexttier

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// replayLimit is the maximum size of a body that can be sent again, in bytes.
const replayLimit = 64 << 10

// bodyGrace is how long an answered client may continue to send its body.
const bodyGrace = time.Second

var errBodyDone = errors.New("the request is over")

// body is a request body that several attempts can read. It retains up to replayLimit bytes for
// the next attempt.
type body struct {
	source io.ReadCloser
	w      http.ResponseWriter
	req    *http.Request
	// answered is set once there is a response, so that no attempt follows. The latest attempt
	// then closes the source itself: a read of it may be blocked, because the client has
	// received the response and sends nothing more, and the transport waits for this read.
	answered atomic.Bool
	latest   atomic.Pointer[attempt]
	// handlerDone is set when the handler returns. The source must not be read afterwards,
	// although a transport may still hold an attempt.
	handlerDone atomic.Bool

	mu sync.Mutex
	// replay is the data read so far, unless tooLarge is set.
	replay   []byte
	tooLarge bool
	readErr  error
}

// newBody returns nil if the request has no body.
func newBody(w http.ResponseWriter, req *http.Request) *body {
	if !hasBody(req) {
		return nil
	}
	return &body{source: req.Body, w: w, req: req}
}

func hasBody(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody && req.ContentLength != 0
}

// limitBodyRead bounds the time to read the rest of the body of an answered request. net/http
// reads it before it sends the response over HTTP/1.1.
func limitBodyRead(w http.ResponseWriter, req *http.Request) {
	if req.ProtoMajor == 1 && hasBody(req) {
		// It fails if there is no connection, and then nothing can block.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyGrace))
	}
}

// newAttempt returns the body from its beginning, or false if it cannot be replayed.
func (b *body) newAttempt() (io.ReadCloser, bool) {
	if b == nil {
		return nil, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &attempt{body: b}
	b.latest.Store(a)
	return a, !b.tooLarge
}

// markAnswered records that the latest attempt has a response.
func (b *body) markAnswered() {
	if b == nil {
		return
	}
	b.answered.Store(true)
	if a := b.latest.Load(); a != nil && a.closed.Load() {
		b.closeSource()
	}
}

// closeSource ends the current read of the source, at once or after bodyGrace. It does not block.
func (b *body) closeSource() {
	if b.req.ProtoMajor == 1 {
		limitBodyRead(b.w, b.req) // Close would wait for the read
		return
	}
	_ = b.source.Close()
}

func (b *body) finish() {
	if b != nil {
		b.handlerDone.Store(true)
	}
}

// attempt is the body as one transport reads it. Closing it does not close the source before the
// request is answered, because another attempt may need it.
type attempt struct {
	body *body
	// position is the number of bytes read by this attempt.
	position int
	closed   atomic.Bool
}

func (a *attempt) Read(p []byte) (int, error) {
	b := a.body
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed.Load() || b.handlerDone.Load() {
		return 0, errBodyDone
	}
	if a.position < len(b.replay) {
		n := copy(p, b.replay[a.position:])
		a.position += n
		return n, nil
	}
	if b.readErr != nil {
		return 0, b.readErr
	}
	// Hold the lock while reading: a later attempt must get this data, too.
	n, err := b.source.Read(p)
	a.position += n
	b.readErr = err
	if len(b.replay)+n > replayLimit {
		b.tooLarge, b.replay = true, nil
	}
	if !b.tooLarge {
		b.replay = append(b.replay, p[:n]...)
	}
	return n, err
}

// Close implements [io.Closer]. It may be called during Read.
func (a *attempt) Close() error {
	a.closed.Store(true)
	if a.body.answered.Load() && a.body.latest.Load() == a {
		a.body.closeSource()
	}
	return nil
}

// responseBody is a response body. Closing it before its end resets the stream. Close may be
// called during Read.
type responseBody struct {
	io.ReadCloser
	conn        *conn
	headerBytes atomic.Int64 // size of the request headers; 0 once reported to conn
	complete    atomic.Bool
}

func newResponseBody(body io.ReadCloser, conn *conn, head int64) *responseBody {
	a := &responseBody{ReadCloser: body, conn: conn}
	a.headerBytes.Store(head)
	return a
}

func (a *responseBody) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.complete.Store(err == io.EOF)
	}
	return n, err
}

func (a *responseBody) Close() error {
	if head := a.headerBytes.Swap(0); a.complete.Swap(true) {
		a.conn.streamDone(head)
	} else {
		a.conn.streamReset(head)
	}
	return a.ReadCloser.Close()
}
