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
	settled atomic.Bool
	last    atomic.Pointer[attempt]
	// done is set when the handler returns: the server's body must not be read
	// any more then, though a transport may still hold an attempt.
	done atomic.Bool

	mu sync.Mutex
	// kept is all that was read, unless lost: then the body cannot be replayed.
	kept []byte
	lost bool
	end  error
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
func leaveBody(w http.ResponseWriter, req *http.Request) {
	if req.ProtoMajor == 1 && hasBody(req) {
		// Where there is no connection there is nobody to wait for.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyGrace))
	}
}

// attempt returns the body from its beginning, or false if that is gone.
func (b *body) attempt() (io.ReadCloser, bool) {
	if b == nil {
		return nil, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &attempt{body: b}
	b.last.Store(a)
	return a, !b.lost
}

// settle says that the latest attempt has been answered.
func (b *body) settle() {
	if b == nil {
		return
	}
	b.settled.Store(true)
	if a := b.last.Load(); a != nil && a.closed.Load() {
		b.leave()
	}
}

// leave ends a read of the source that is under way, at once or after a while. It does not
// wait for that.
func (b *body) leave() {
	if b.req.ProtoMajor == 1 {
		leaveBody(b.w, b.req) // Close would wait for the read.
		return
	}
	_ = b.source.Close() // Nobody reads it any more.
}

func (b *body) finish() {
	if b != nil {
		b.done.Store(true)
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
	if a.closed.Load() || b.done.Load() {
		return 0, errBodyDone
	}
	if a.position < len(b.kept) {
		n := copy(p, b.kept[a.position:])
		a.position += n
		return n, nil
	}
	if b.end != nil {
		return 0, b.end
	}
	// The lock is held while the client sends: a later attempt must see what
	// this read takes from the source.
	n, err := b.source.Read(p)
	a.position += n
	b.end = err
	if len(b.kept)+n > replayLimit {
		b.lost, b.kept = true, nil
	}
	if !b.lost {
		b.kept = append(b.kept, p[:n]...)
	}
	return n, err
}

// Close may be called during a Read.
func (a *attempt) Close() error {
	a.closed.Store(true)
	if a.body.settled.Load() && a.body.last.Load() == a {
		a.body.leave()
	}
	return nil
}

// answerBody is the body of an answer. One that is closed before its end resets its stream.
// Close may be called during a Read.
type answerBody struct {
	io.ReadCloser
	conn  *conn
	head  atomic.Int64 // bytes of the request's header fields; 0 once conn knows of the end
	whole atomic.Bool
}

func newAnswerBody(body io.ReadCloser, conn *conn, head int64) *answerBody {
	a := &answerBody{ReadCloser: body, conn: conn}
	a.head.Store(head)
	return a
}

func (a *answerBody) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.whole.Store(err == io.EOF)
	}
	return n, err
}

func (a *answerBody) Close() error {
	if head := a.head.Swap(0); a.whole.Swap(true) {
		a.conn.answered(head)
	} else {
		a.conn.reset(head)
	}
	return a.ReadCloser.Close()
}
