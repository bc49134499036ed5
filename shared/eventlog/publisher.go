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

// publisher sends units to one stream, each a message or an atomic batch, and takes
// their acknowledgements. It is of use until the first failure: then it sends
// nothing more, and never anything twice. send is called by one goroutine.
type publisher struct {
	conn       *nats.Conn
	inbox      string // replies come to inbox.<number>
	sub        *nats.Subscription
	ackTimeout time.Duration
	number     uint64 // of the last unit, by send's goroutine
	// intercept may swallow an answer, in tests; nil otherwise.
	intercept func(*nats.Msg) bool
	buffer    []byte // by send's goroutine
	// wake gets a signal at the first failure, and when there is room after await.
	wake chan<- struct{}

	mu      sync.Mutex
	pending map[uint64]unit // guarded by mu
	bytes   int             // of pending, guarded by mu
	waiting bool            // for room; guarded by mu
	err     error           // the first failure, guarded by mu
}

// unit is what one acknowledgement stands for.
type unit struct {
	first    ID
	messages int
	bytes    int
	sent     time.Time
}

// farewell bounds what a relay does for its successor once it is told to end.
const farewell = 500 * time.Millisecond

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

// send publishes a unit. header returns the headers of each of its messages, which
// fence it.
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
			p.answered(p.number, 0, err)
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
	errDuplicate      = errors.New("taken for a duplicate")
	errConnectionLost = errors.New("connection to NATS is lost")
)

// acknowledge is called by NATS with the answer to a unit.
func (p *publisher) acknowledge(answer *nats.Msg) {
	if p.intercept != nil && p.intercept(answer) {
		return
	}
	number, err := strconv.ParseUint(answer.Subject[strings.LastIndexByte(answer.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	count, err := parseAnswer(answer)
	p.answered(number, count, err)
}

// parseAnswer returns how many messages an acknowledgement says are stored, or why
// they are not.
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

// answered takes a unit off the pending ones.
func (p *publisher) answered(number uint64, count int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, ok := p.pending[number]
	if !ok {
		return
	}
	delete(p.pending, number)
	p.bytes -= u.bytes
	if err == nil && count != u.messages {
		err = fmt.Errorf("%d of %d messages are stored", count, u.messages)
	}
	if err != nil {
		p.failLocked(fmt.Errorf("publish %s: %w", u.first, err))
	}
	// A pipeline is filled up again when half of it is through.
	if p.waiting && (len(p.pending) == 0 || len(p.pending) <= pipelined.units/2 && p.bytes <= pendingBytes/2) {
		p.waiting = false
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

// expire fails if a unit has waited for its acknowledgement too long.
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

// underWay returns how many units with how many bytes are not acknowledged, and the
// first failure.
func (p *publisher) underWay() (units, bytes int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending), p.bytes, p.err
}

// await asks for a signal on wake when there is room, and reports whether anything is
// under way.
func (p *publisher) await() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = len(p.pending) > 0
	return p.waiting
}

// close takes no more acknowledgements; what is under way may still be stored.
func (p *publisher) close() { _ = p.sub.Unsubscribe() }
