package eventlog

import (
	"cmp"
	"fmt"
	"slices"

	"triune.dev/shared/storage/kv"
)

// readerModel models a reader and its sink.
type readerModel struct {
	*world
	applied  []string
	resets   []int64
	revision int64
	last     kv.Event
	event    int64 // revision of last, or of the reset before the first
	anchor   anchor

	onStream            bool
	verifier            *verifier // nil until it starts at the end of the stream
	cursor              uint64
	made                int // creation of the stream that the cursor belongs to
	messageCount        int
	known               record
	replacedIncarnation uint64
	since               int64
	from                int64 // revision after which etcd is watched
	life                int
}

func (r *readerModel) begin() { r.restart() }

func (r *readerModel) restart() {
	r.note("reader begins at revision %d", r.etcd.revision)
	r.applied, r.last, r.anchor = nil, kv.Event{}, anchor{}
	r.revision, r.event, r.from, r.life = r.etcd.revision, r.etcd.revision, r.etcd.revision, r.lives
	r.resets = append(r.resets, r.revision)
	r.onStream, r.verifier = false, nil
}

func (r *readerModel) onReplaced() {
	r.replacedIncarnation, r.known, r.since = r.known.Incarnation, record{}, r.etcd.revision
	r.restart()
}

// switchToEtcd models readLoop.switchToEtcd.
func (r *readerModel) switchToEtcd() {
	if r.onStream {
		r.gaps++
	}
	r.onStream, r.life = false, r.lives
	r.note("reader at %d goes to etcd at %d, last event at %d, anchor %d", r.revision, r.etcd.revision, r.event, r.anchor.Revision)
	if r.etcd.revision < r.revision || r.etcd.lacks(&r.last) {
		r.onReplaced()
		return
	}
	r.from = r.revision
	if r.bug == anchorless {
		return
	}
	switch r.etcd.check(r.anchor) {
	case refuted:
		r.onReplaced()
	case confirmed:
		r.from = min(r.revision, max(r.event, r.anchor.Revision))
	default:
		r.from = r.event
	}
}

func (r *readerModel) apply(e kv.Event) {
	if e.Revision <= r.revision {
		r.wrong = fmt.Sprintf("%d after %d", e.Revision, r.revision)
	}
	r.applied = append(r.applied, string(e.Value))
	r.last, r.event, r.revision = e, e.Revision, e.Revision
}

// probe models a reader whose stream is silent.
func (r *readerModel) probe() {
	if r.etcd.revision < r.revision {
		r.onReplaced()
	} else if r.onStream && r.etcd.revision > r.revision+6 {
		r.verifier = nil
		r.switchToEtcd()
	}
}

func (r *readerModel) step() {
	if !r.onStream {
		r.readEtcd()
	}
	r.readStream()
}

func (r *readerModel) readEtcd() {
	if r.life != r.lives {
		r.switchToEtcd()
		return
	}
	for _, e := range r.etcd.after(r.from) {
		switch {
		case e.Revision > r.revision:
			r.apply(e)
		case e.Revision > r.event:
			if r.bug != anchorless {
				r.onReplaced()
				return
			}
		}
	}
	r.from = r.etcd.revision
	r.revision = max(r.revision, r.etcd.revision)
}

func (r *readerModel) readStream() {
	s := &r.stream
	if !s.exists || s.dead || s.away {
		return
	}
	if r.verifier == nil || r.made != s.made {
		if r.onStream {
			r.switchToEtcd() // only etcd has the messages in flight
		}
		r.verifier, r.made, r.messageCount, r.cursor = &verifier{}, s.made, 0, s.sequence
		if s.sequence > 0 {
			r.cursor--
		}
	}
	next, _ := slices.BinarySearchFunc(s.messages, r.cursor+1, func(m storedModel, sequence uint64) int { return cmp.Compare(m.sequence, sequence) })
	if next < len(s.messages) {
		stored := s.messages[next]
		r.cursor = stored.sequence
		m := stored.message
		if !r.knownIncarnation(&m) {
			return
		}
		r.messageCount++
		if m.Anchor.Revision != 0 {
			r.anchor = m.Anchor
		}
		got, err := r.verifier.accept(&m)
		if err != nil {
			r.note("reader: %v", err)
			r.verifier = nil
			if r.onStream {
				r.switchToEtcd()
			}
			return
		}
		r.onOutcome(got)
	}
}

func (r *readerModel) onOutcome(got outcome) {
	switch {
	case !r.onStream:
		if r.verifier.synced && r.verifier.complete >= r.revision && r.messageCount > 1 && r.life == r.lives {
			// Pause until etcd has caught up.
			if r.readEtcd(); r.verifier != nil && r.revision >= r.verifier.complete {
				r.onStream = true
			}
		}
	case got.reset && r.verifier.complete > r.revision:
		r.switchToEtcd()
	default:
		for _, e := range got.events {
			if e.Revision > r.revision {
				r.apply(e)
			}
		}
		if r.verifier.synced {
			r.revision = max(r.revision, r.verifier.complete)
		}
	}
}

// knownIncarnation models readLoop.knownIncarnation.
func (r *readerModel) knownIncarnation(m *message) bool {
	switch m.Incarnation {
	case r.known.Incarnation:
		return true
	case r.replacedIncarnation:
		if m.Type != typeEvent || m.ID.Revision <= r.since || r.etcd.lacks(&m.Event) {
			return false
		}
		r.replacedIncarnation = 0
	}
	known := r.etcd.record
	switch {
	case known.Incarnation != m.Incarnation:
		return false
	case r.known.Incarnation == 0:
		r.known = known
		return true
	case r.known.History == known.History:
		r.known, r.verifier = known, nil
		if r.onStream {
			r.switchToEtcd()
		}
		return false
	}
	r.onReplaced()
	r.known = known
	return false
}
