package eventlog

import (
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// relayModel models a relay. Its knowledge dates from its last steps.
type relayModel struct {
	*world
	id     int
	paused bool
	state  string // "", opening, publishing
	lease  int
	since  int64
	life   int
	epoch  uint64

	feed       *feed
	anchor     anchor
	head       int64
	last       string // ID of the last sent message
	inFlight   [][]sentModel
	failed     int
	recreation *evidence // the evidence for a pending recreation
}

// crash forgets everything. Messages in flight may or may not arrive.
func (r *relayModel) crash() {
	r.note("relay %d crashes", r.id)
	fresh := relayModel{world: r.world, id: r.id}
	if r.rnd.IntN(2) == 0 {
		fresh.inFlight = r.inFlight
	}
	*r = fresh
	if r.etcd.holder == r.id {
		r.etcd.holder = 0
		r.etcd.revision++
	}
}

// guard models election.guard.
func (r *relayModel) guard() bool {
	e := &r.etcd
	if e.holder == r.id && e.lease == r.lease && e.elected == r.since {
		e.revision++
		return true
	}
	r.state, r.feed, r.recreation = "", nil, nil
	return false
}

func (r *relayModel) step() {
	switch {
	case len(r.inFlight) > 0 && (r.state != "publishing" || r.rnd.IntN(2) == 0):
		r.arrive()
	case r.state == "":
		r.campaign()
	case r.state == "opening":
		r.open()
	default:
		r.publish()
	}
}

// arrive delivers one unit to the stream, and the reply to the relay.
func (r *relayModel) arrive() {
	unit := r.inFlight[0]
	r.inFlight = r.inFlight[1:]
	stored := r.stream.accept(unit)
	if r.stream.stale {
		r.wrong = fmt.Sprintf("%s is stored after its successor's", unit[0].message.ID)
	}
	if r.feed == nil || unit[0].message.ID.Epoch != r.epoch {
		return
	}
	if !stored || !r.resting && r.rnd.IntN(40) == 0 { // refused, or the reply is lost
		r.reopen()
		return
	}
	if len(r.inFlight) == 0 && r.feed.unackedFence != 0 {
		r.feed.token, r.feed.unackedFence, r.failed = r.feed.unackedFence, 0, 0
	}
	r.flush()
}

func (r *relayModel) reopen() {
	r.state, r.feed, r.recreation = "opening", nil, nil
	r.failed++
	if r.rnd.IntN(4) == 0 {
		r.inFlight = nil // lost with the connection
	}
}

func (r *relayModel) campaign() {
	e := &r.etcd
	if e.holder != 0 {
		return
	}
	e.revision++
	r.writes++
	e.holder, e.lease, e.elected = r.id, r.writes, e.revision
	r.anchor = anchor{}
	r.lease, r.since, r.failed = e.lease, e.elected, 0
	r.state = "opening"
	r.epoch = 0
}

// open models term.tryOpen in several steps.
func (r *relayModel) open() {
	if r.recreation != nil {
		r.recreate()
		return
	}
	if r.epoch == 0 || r.failed > 0 && r.rnd.IntN(2) == 0 || r.bug != unguarded {
		if !r.guard() {
			return
		}
		r.epoch = uint64(r.etcd.revision)
		if !r.resting && r.rnd.IntN(3) == 0 {
			r.failed = max(r.failed, 1) // it stalls
			return
		}
	}
	if r.stream.dead || r.stream.away || r.failed > 12 {
		if r.failed++; r.failed > 12 && !r.stream.away && r.bug != fenceByID && r.bug != forgetID {
			r.recreation = &evidence{epoch: r.epoch, record: r.etcd.record}
		}
		return
	}
	if !r.stream.exists {
		r.stream = streamModel{exists: true, replicated: r.stream.replicated, made: r.stream.made + 1, recounted: r.stream.recounted}
	}
	end := r.stream.tail()
	found := r.etcd.check(end.anchor)
	if r.bug == anchorless {
		found = unknown
	}
	contradicted := found == refuted
	if end.event != nil && end.event.Type == typeEvent {
		contradicted = contradicted || r.etcd.lacks(&end.event.Event)
	}
	ev := evidence{epoch: r.epoch, record: r.etcd.record, revision: r.etcd.revision, contradicted: contradicted}
	verdict := end.judge(ev)
	if r.bug == unguarded && verdict == stepDown {
		verdict = replaceHistory
	}
	switch verdict {
	case continueStream:
		s := newSequencer(r.epoch)
		s.incarnation = ev.record.Incarnation
		s.last, s.event, s.section, s.complete = end.last.ID, end.chainEnd(), end.section, end.complete()
		from := s.complete
		switch {
		case found == confirmed:
			from = min(max(end.anchor.Revision, s.event.Revision), from)
		case !s.event.unpublished():
			from = min(s.event.Revision, from)
		}
		r.begin(s, end.sequence, from, 0)
	case startSection:
		if r.bug != unguarded && !r.guard() {
			return
		}
		if ev.record.Incarnation == 0 {
			ev.record = record{Incarnation: r.rnd.Uint64() | 1, History: r.rnd.Uint64() | 1}
		}
		r.etcd.record = ev.record
		r.etcd.record.Revision = r.etcd.revision
		s := newSequencer(r.epoch)
		s.incarnation = ev.record.Incarnation
		r.begin(s, end.sequence, r.etcd.revision, r.etcd.revision)
	case recreateStream:
		r.note("relay %d finds a stream that was to be recreated", r.id)
		r.recreation = &ev
	case stepDown:
		if !r.guard() {
			return
		}
		fallthrough
	default:
		r.note("relay %d, epoch %d, at revision %d: the stream ends with %s of %x, etcd has %x, contradicted %t", r.id, r.epoch, ev.revision,
			end.last.ID, end.last.Incarnation, ev.record, contradicted)
		ev.record.History = r.rnd.Uint64() | 1
		r.recreation = &ev
	}
}

// recreate models openAttempt.recreate.
func (r *relayModel) recreate() {
	if r.bug != unguarded && !r.guard() {
		return
	}
	history := r.recreation.record.History
	if history == 0 {
		history = r.rnd.Uint64() | 1
	}
	r.note("relay %d recreates the stream", r.id)
	r.etcd.record = record{Incarnation: r.rnd.Uint64() | 1, History: history, Revision: r.etcd.revision}
	r.replaced++
	r.stream = streamModel{exists: true, replicated: r.stream.replicated, made: r.stream.made + 1, recounted: true}
	r.recreation = nil
	s := newSequencer(r.epoch)
	s.incarnation = r.etcd.record.Incarnation
	r.state = "opening"
	r.begin(s, 0, r.etcd.revision, r.etcd.revision)
}

// begin models term.onOpened.
func (r *relayModel) begin(s *sequencer, sequence uint64, from, reset int64) {
	r.feed = &feed{name: "s", sequencer: s, sequence: sequence, watchFrom: from, outbox: outbox{limits: pipelined}}
	if r.stream.replicated {
		r.feed.limits = batched
	}
	if r.bug == fenceByID || r.bug == forgetID {
		r.feed.limits = pipelined
	}
	r.last = s.last.String()
	r.state, r.life, r.head = "publishing", r.lives, from
	if reset != 0 {
		r.anchor = anchor{}
		if r.bug != anchorless {
			r.writeAnchor()
		}
		r.feed.reset(reset)
	}
	r.feed.enqueue(s.progress(s.complete, r.anchor), "s"+fenceSubject, true)
	r.flush()
}

// publish reads from etcd and sends what may be sent.
func (r *relayModel) publish() {
	if r.life != r.lives {
		r.anchor = anchor{} // lost with the connection
		r.reopen()
		return
	}
	f := r.feed
	if r.rnd.IntN(8) == 0 && r.head > r.anchor.Revision && r.bug != anchorless {
		if r.etcd.check(r.anchor) == refuted || !r.guard() {
			r.anchor = anchor{}
			if r.feed != nil {
				r.reopen()
			}
			return
		}
		r.writeAnchor()
	}
	events := r.etcd.after(r.head)
	if n := r.rnd.IntN(6); n < len(events) {
		events = events[:n]
		if n > 0 {
			r.head = events[n-1].Revision
		}
	} else {
		r.head = r.etcd.revision
	}
	for i := range events {
		e := &events[i]
		switch {
		case e.Revision > f.complete:
			f.learn("s.x", ID{})
			f.enqueue(f.change(*e, "s.x", true), "s.x", false)
		case f.contradicts(e) && r.bug != anchorless:
			r.note("relay %d finds revision %d", r.id, e.Revision)
			r.recreation = &evidence{epoch: r.epoch, record: r.etcd.record}
			r.recreation.record.History = r.rnd.Uint64() | 1
			r.state, r.feed = "opening", nil
			return
		}
	}
	if r.head >= f.complete && f.empty() && r.rnd.IntN(2) == 0 {
		f.enqueue(f.progress(r.head, r.anchor), "s"+progressSubject, false)
	}
	r.flush()
}

func (r *relayModel) writeAnchor() {
	r.etcd.revision++
	r.anchor = anchor{Revision: r.etcd.revision, Nonce: r.rnd.Uint64() | 1}
	r.etcd.log = append(r.etcd.log, entry{revision: r.anchor.Revision, anchor: r.anchor.Nonce})
}

// flush models term.sendReady.
func (r *relayModel) flush() {
	f := r.feed
	for f.unackedFence == 0 {
		messages := f.outbox.next(len(r.inFlight), 0)
		if messages == nil {
			return
		}
		after := f.sequence
		var unit []sentModel
		for i := range messages {
			m := sentModel{subject: messages[i].subject, message: messages[i].message, header: f.fence()}
			if len(messages) > 1 {
				m.header = f.batchHeader(after, i, len(messages))
			}
			switch {
			case (r.bug == fenceByID || r.bug == forgetID) && r.last != (ID{}).String():
				m.header, m.expects = nats.Header{}, r.last
			case r.bug == sequenceOnly:
				delete(m.header, jetstream.ExpectedLastSubjSeqHeader)
			}
			if m.message.Type == typeProgress {
				m.header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
			}
			r.last = m.message.ID.String()
			f.sequence++
			unit = append(unit, m)
		}
		r.inFlight = append(r.inFlight, unit)
		if messages[0].barrier {
			f.unackedFence = f.sequence
		}
	}
}
