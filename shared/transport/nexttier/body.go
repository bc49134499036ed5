package nexttier

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// replayLimit is how much of a body is kept to send a request again, in bytes.
const replayLimit = 64 << 10

// bodyGrace is how long a client may go on sending what nobody waits for any more.
const bodyGrace = time.Second

var errBodyDone = errors.New("the request is over")

// body is the client's request body on its way, in one attempt or several. It
// keeps what has been read up to replayLimit; each attempt reads that first.
type body struct {
	source io.ReadCloser
	w      http.ResponseWriter
	req    *http.Request
	// settled is set when there is a response, so that no attempt will follow. What
	// the latest one, in last, has closed then is the source itself: it may be in the
	// middle of a read, waiting for a client that has seen the response and sends
	// nothing more, and a transport waits for that read before it lets a response go.
	answered atomic.Bool
	latest   atomic.Pointer[attempt]
	// done is set when the handler returns: the server's body must not be read
	// any more then, though a transport may still hold an attempt.
	handlerDone atomic.Bool

	mu sync.Mutex
	// kept is all that was read, unless lost: then the body cannot be replayed.
	replay   []byte
	tooLarge bool
	readErr  error
}

// newBody returns nil for a request without a body.
func newBody(w http.ResponseWriter, req *http.Request) *body {
	if !hasBody(req) {
		return nil
	}
	return &body{source: req.Body, w: w, req: req}
}

func hasBody(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody && req.ContentLength != 0
}

// leaveBody is called when req has been answered and its body may not have come yet.
// net/http reads the rest of a body of HTTP/1.1 before it sends the answer, however long that
// takes.
func limitBodyRead(w http.ResponseWriter, req *http.Request) {
	if req.ProtoMajor == 1 && hasBody(req) {
		// Where there is no connection there is nobody to wait for.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyGrace))
	}
}

// attempt returns the body from its beginning, or false if that is gone.
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

// settle says that the latest attempt has been answered.
func (b *body) markAnswered() {
	if b == nil {
		return
	}
	b.answered.Store(true)
	if a := b.latest.Load(); a != nil && a.closed.Load() {
		b.closeSource()
	}
}

// leave ends a read of the source that is under way, at once or after a while. It does not
// wait for that.
func (b *body) closeSource() {
	if b.req.ProtoMajor == 1 {
		limitBodyRead(b.w, b.req) // Close would wait for the read.
		return
	}
	_ = b.source.Close() // Nobody reads it any more.
}

func (b *body) finish() {
	if b != nil {
		b.handlerDone.Store(true)
	}
}

// attempt is the body as one transport reads it. Close leaves the source alone
// until the body is settled, for another attempt may need it.
type attempt struct {
	body *body
	// position counts what this attempt has read.
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
	// The lock is held while the client sends: a later attempt must see what
	// this read takes from the source.
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

// Close may be called during a Read.
func (a *attempt) Close() error {
	a.closed.Store(true)
	if a.body.answered.Load() && a.body.latest.Load() == a {
		a.body.closeSource()
	}
	return nil
}

// answerBody is the body of an answer. One that is closed before its end resets its stream.
// Close may be called during a Read.
type responseBody struct {
	io.ReadCloser
	conn        *conn
	headerBytes atomic.Int64 // bytes of the request's header fields; 0 once conn knows of the end
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
