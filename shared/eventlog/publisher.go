package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// publisher sends messages to JetStream without waiting for each to be
// acknowledged. It is of use until the first failure: then it sends nothing
// more, and never anything twice. send is called by one goroutine.
type publisher struct {
	conn       *nats.Conn
	inbox      string // replies come to inbox.<number>
	sub        *nats.Subscription
	ackTimeout time.Duration
	sent       uint64 // by send's goroutine
	// intercept may swallow an answer, in tests; nil otherwise. Set before send.
	intercept func(*nats.Msg) bool
	buffer    []byte        // by send's goroutine
	done      chan struct{} // closed at the first failure

	mu      sync.Mutex
	room    sync.Cond             // signals that pending, bytes or err have changed
	pending map[uint64]unanswered // guarded by mu
	bytes   int                   // of pending, guarded by mu
	err     error                 // of the first failure, guarded by mu
}

// unanswered is a message without an acknowledgement.
type unanswered struct {
	id    ID
	bytes int
	timer *time.Timer
}

// What may be under way without being acknowledged.
const (
	maxPending      = 1024
	maxPendingBytes = 16 << 20
)

// farewell bounds what a relay does for its successor once it is told to end.
const farewell = 500 * time.Millisecond

func newPublisher(conn *nats.Conn, ackTimeout time.Duration) (*publisher, error) {
	p := &publisher{
		conn: conn, inbox: conn.NewInbox(), ackTimeout: ackTimeout,
		done: make(chan struct{}), pending: map[uint64]unanswered{},
	}
	p.room.L = &p.mu
	sub, err := conn.Subscribe(p.inbox+".*", p.acknowledge)
	if err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	p.sub = sub
	return p, nil
}

// send publishes a message whose headers fence it. It blocks while too much is
// under way.
func (p *publisher) send(subject string, header nats.Header, m *message) error {
	p.buffer = appendMessage(p.buffer[:0], m)
	size := len(p.buffer)
	p.sent++
	number := p.sent
	p.mu.Lock()
	for p.err == nil && (len(p.pending) >= maxPending || p.bytes > maxPendingBytes) {
		p.room.Wait()
	}
	if p.err != nil {
		defer p.mu.Unlock()
		return p.err
	}
	p.pending[number] = unanswered{id: m.ID, bytes: size, timer: time.AfterFunc(p.ackTimeout, func() {
		p.answered(number, errAckTimeout)
	})}
	p.bytes += size
	p.mu.Unlock()
	err := p.conn.PublishMsg(&nats.Msg{
		Subject: subject, Reply: p.inbox + "." + strconv.FormatUint(number, 10), Header: header, Data: p.buffer,
	})
	if err != nil {
		p.answered(number, err)
		return err
	}
	if cap(p.buffer) > 1<<20 {
		p.buffer = nil
	}
	return nil
}

var (
	errAckTimeout     = errors.New("no acknowledgement")
	errDuplicate      = errors.New("taken for a duplicate")
	errConnectionLost = errors.New("connection to NATS is lost")
)

// acknowledge is called by NATS with the answer to a message.
func (p *publisher) acknowledge(answer *nats.Msg) {
	if p.intercept != nil && p.intercept(answer) {
		return
	}
	number, err := strconv.ParseUint(answer.Subject[strings.LastIndexByte(answer.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	p.answered(number, answerError(answer))
}

// answerError returns nil for an acknowledgement that the message is stored.
func answerError(answer *nats.Msg) error {
	if answer.Header.Get("Status") == "503" {
		return nats.ErrNoResponders
	}
	if !bytes.Contains(answer.Data, []byte(`"error"`)) && !bytes.Contains(answer.Data, []byte(`"duplicate"`)) && bytes.Contains(answer.Data, []byte(`"seq"`)) {
		return nil
	}
	var ack struct {
		Error     *jetstream.APIError `json:"error"`
		Duplicate bool                `json:"duplicate"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return fmt.Errorf("acknowledgement: %w", err)
	}
	switch {
	case ack.Error != nil:
		return ack.Error
	case ack.Duplicate:
		return errDuplicate
	}
	return errors.New("acknowledgement without a sequence")
}

// answered takes a message off the pending ones.
func (p *publisher) answered(number uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.pending[number]
	if !ok {
		return
	}
	a.timer.Stop()
	delete(p.pending, number)
	p.bytes -= a.bytes
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("publish %s: %w", a.id, err)
		close(p.done)
	}
	p.room.Broadcast()
}

// fail gives up on whatever is not answered yet.
func (p *publisher) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.pending {
		a.timer.Stop()
	}
	clear(p.pending)
	p.bytes = 0
	if p.err == nil {
		p.err = err
		close(p.done)
	}
	p.room.Broadcast()
}

// failed is closed at the first failure, which err then returns.
func (p *publisher) failed() <-chan struct{} { return p.done }

// idle tells whether everything sent is answered, and the first failure.
func (p *publisher) idle() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) == 0, p.err
}

// drain waits until everything sent is answered, or its time is over, and
// returns the first failure. Each message has a time limit, so it ends; ctx
// shortens it.
func (p *publisher) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.room.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.pending) > 0 && ctx.Err() == nil {
		p.room.Wait()
	}
	if p.err == nil && len(p.pending) > 0 {
		return context.Cause(ctx)
	}
	return p.err
}

// close drains no more; what is under way may still be stored.
func (p *publisher) close() {
	_ = p.sub.Unsubscribe()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.pending {
		a.timer.Stop()
	}
	clear(p.pending)
}
