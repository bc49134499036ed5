package eventlog

import (
	"bytes"
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

// publisher sends units to one stream, each a message or an atomic batch, and collects their
// acknowledgements. After the first failure it sends nothing more; it never sends anything
// twice. send must be called by one goroutine.
type publisher struct {
	conn       *nats.Conn
	inbox      string // acknowledgements arrive on inbox.<number>
	sub        *nats.Subscription
	ackTimeout time.Duration
	number     uint64 // of the last unit; used only by send's goroutine
	// intercept lets tests swallow an acknowledgement; nil otherwise.
	intercept func(*nats.Msg) bool
	buffer    []byte // used only by send's goroutine
	// wake receives a signal at the first failure, and when there is room after requestWake.
	wake chan<- struct{}

	mu            sync.Mutex
	pending       map[uint64]unit // guarded by mu
	bytes         int             // size of pending; guarded by mu
	wakeRequested bool            // a wake-up is requested; guarded by mu
	err           error           // first failure; guarded by mu
}

// unit is the set of messages that one acknowledgement covers.
type unit struct {
	first    ID
	messages int
	bytes    int
	sent     time.Time
}

// drainTimeout bounds the wait for outstanding acknowledgements at the end of a term.
const drainTimeout = 500 * time.Millisecond

func newPublisher(conn *nats.Conn, ackTimeout time.Duration, wake chan<- struct{}, intercept func(*nats.Msg) bool) (*publisher, error) {
	p := &publisher{
		conn: conn, inbox: conn.NewInbox(), ackTimeout: ackTimeout, wake: wake, intercept: intercept, pending: map[uint64]unit{},
	}
	sub, err := conn.Subscribe(p.inbox+".*", p.acknowledge)
	if err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	p.sub = sub
	return p, nil
}

// send publishes a unit. header returns the headers of the i-th message, which fence it.
func (p *publisher) send(messages []outgoing, header func(i int) nats.Header) error {
	u := unit{first: messages[0].ID, messages: len(messages), sent: time.Now()}
	for i := range messages {
		u.bytes += messages[i].size
	}
	p.number++
	p.mu.Lock()
	if p.err != nil {
		defer p.mu.Unlock()
		return p.err
	}
	p.pending[p.number] = u
	p.bytes += u.bytes
	p.mu.Unlock()
	for i := range messages {
		m := &messages[i]
		p.buffer = appendMessage(p.buffer[:0], &m.message)
		out := nats.Msg{Subject: m.subject, Header: header(i), Data: p.buffer}
		if i == len(messages)-1 {
			out.Reply = p.inbox + "." + strconv.FormatUint(p.number, 10)
		}
		if err := p.conn.PublishMsg(&out); err != nil {
			p.settle(p.number, 0, err)
			return err
		}
	}
	if cap(p.buffer) > 1<<20 {
		p.buffer = nil
	}
	return nil
}

var (
	errAckTimeout     = errors.New("no acknowledgement")
	errDuplicate      = errors.New("rejected as a duplicate")
	errConnectionLost = errors.New("connection to NATS is lost")
)

// acknowledge handles the reply to a unit. nats.go calls it.
func (p *publisher) acknowledge(answer *nats.Msg) {
	if p.intercept != nil && p.intercept(answer) {
		return
	}
	number, err := strconv.ParseUint(answer.Subject[strings.LastIndexByte(answer.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	count, err := parseAnswer(answer)
	p.settle(number, count, err)
}

// parseAnswer returns the number of messages that an acknowledgement confirms, or why they were
// refused.
func parseAnswer(answer *nats.Msg) (int, error) {
	if answer.Header.Get("Status") == "503" {
		return 0, nats.ErrNoResponders
	}
	single := !bytes.Contains(answer.Data, []byte(`"error"`)) && !bytes.Contains(answer.Data, []byte(`"duplicate"`)) &&
		!bytes.Contains(answer.Data, []byte(`"batch"`)) && bytes.Contains(answer.Data, []byte(`"seq"`))
	if single {
		return 1, nil
	}
	var ack struct {
		Error     *jetstream.APIError `json:"error"`
		Duplicate bool                `json:"duplicate"`
		Sequence  uint64              `json:"seq"`
		Batch     string              `json:"batch"`
		Count     int                 `json:"count"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("acknowledgement: %w", err)
	}
	switch {
	case ack.Error != nil:
		return 0, ack.Error
	case ack.Duplicate:
		return 0, errDuplicate
	case ack.Sequence == 0:
		return 0, errors.New("acknowledgement without a sequence")
	case ack.Batch == "":
		return 1, nil
	}
	return ack.Count, nil
}

// settle removes a unit from the pending ones.
func (p *publisher) settle(number uint64, count int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, ok := p.pending[number]
	if !ok {
		return
	}
	delete(p.pending, number)
	p.bytes -= u.bytes
	if err == nil && count != u.messages {
		err = fmt.Errorf("%d of %d messages stored", count, u.messages)
	}
	if err != nil {
		p.failLocked(fmt.Errorf("publish %s: %w", u.first, err))
	}
	// A pipeline is refilled once half of it is acknowledged.
	if p.wakeRequested && (len(p.pending) == 0 || len(p.pending) <= pipelined.units/2 && p.bytes <= pendingBytes/2) {
		p.wakeRequested = false
		p.signal()
	}
}

func (p *publisher) failLocked(err error) {
	if p.err == nil {
		p.err = err
		p.signal()
	}
}

func (p *publisher) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// expire fails the publisher if a unit has waited too long for its acknowledgement.
func (p *publisher) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.pending {
		if now.Sub(u.sent) >= p.ackTimeout {
			p.failLocked(fmt.Errorf("publish %s: %w", u.first, errAckTimeout))
			return
		}
	}
}

// inFlight returns the number and size of the unacknowledged units, and the first failure.
func (p *publisher) inFlight() (units, bytes int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending), p.bytes, p.err
}

// requestWake requests a signal on wake once there is room. It returns false if nothing is in
// flight.
func (p *publisher) requestWake() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakeRequested = len(p.pending) > 0
	return p.wakeRequested
}

// close stops receiving acknowledgements. Messages in flight may still be stored.
func (p *publisher) close() { _ = p.sub.Unsubscribe() }
