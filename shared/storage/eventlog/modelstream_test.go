package eventlog

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// streamModel models a stream of JetStream.
type streamModel struct {
	replicated bool
	exists     bool
	dead       bool // no server can serve it any more
	away       bool // temporarily unavailable
	made       int  // number of creations
	messages   []storedModel
	sequence   uint64
	lastID     string
	forgotten  bool // the leader does not know the last ID
	recounted  bool // a sequence was assigned twice
	stale      bool // a message was stored after its successor's
}

type storedModel struct {
	sequence uint64
	subject  string
	message  message
}

// sentModel is a message in flight.
type sentModel struct {
	subject string
	header  nats.Header
	message message
	expects string // the previous ID, if that is the fence
}

// accept stores a unit or refuses it.
func (s *streamModel) accept(unit []sentModel) bool {
	if !s.exists || s.dead || s.away {
		return false
	}
	for i, m := range unit {
		if s.refuses(m, i) {
			return false
		}
	}
	for _, m := range unit {
		if m.header.Get(jetstream.MsgRollup) != "" {
			s.drop(func(stored storedModel) bool { return stored.subject == m.subject })
		}
		if last := len(s.messages) - 1; last >= 0 && !s.recounted && m.message.ID.Epoch < s.messages[last].message.ID.Epoch {
			s.stale = true
		}
		s.sequence++
		s.messages = append(s.messages, storedModel{s.sequence, m.subject, m.message})
		s.lastID, s.forgotten = m.message.ID.String(), false
	}
	return true
}

func (s *streamModel) refuses(m sentModel, i int) bool {
	if m.expects != "" && (m.expects != s.lastID || s.forgotten) {
		// Replicas find out only after they have agreed on the message.
		s.dead = s.replicated
		return true
	}
	if want := m.header[jetstream.ExpectedLastSeqHeader]; want != nil && (i > 0 || want[0] != strconv.FormatUint(s.sequence, 10)) {
		return true
	}
	want := m.header[jetstream.ExpectedLastSubjSeqHeader]
	if want == nil {
		return false
	}
	last := s.lastOn(m.header[jetstream.ExpectedLastSubjSeqSubjHeader][0])
	return last == nil || strconv.FormatUint(last.sequence, 10) != want[0]
}

func (s *streamModel) drop(which func(storedModel) bool) {
	s.messages = slices.DeleteFunc(s.messages, which)
}

func (s *streamModel) lastOn(subject string) *storedModel {
	for i := len(s.messages) - 1; i >= 0; i-- {
		if s.messages[i].subject == subject {
			return &s.messages[i]
		}
	}
	return nil
}

// lose models lost files and interventions of operators.
func (s *streamModel) lose(rnd *rand.Rand) {
	if !s.exists {
		return
	}
	switch rnd.IntN(4) {
	case 0: // purged
		s.messages = nil
	case 1: // the last messages were not flushed
		n := rnd.IntN(4)
		s.messages = s.messages[:max(0, len(s.messages)-n)]
		s.sequence = 0
		if len(s.messages) > 0 {
			s.sequence = s.messages[len(s.messages)-1].sequence
			s.lastID = s.messages[len(s.messages)-1].message.ID.String()
		}
		s.made++ // consumers are lost, too
		s.recounted = true
	case 2: // deleted
		*s = streamModel{replicated: s.replicated, made: s.made + 1, recounted: true}
	case 3: // the oldest are discarded
		s.messages = s.messages[min(len(s.messages), rnd.IntN(5)):]
	}
}

func (s *streamModel) tail() tail {
	t := tail{sequence: s.sequence}
	if len(s.messages) == 0 || s.messages[len(s.messages)-1].sequence != s.sequence {
		return t
	}
	last := s.messages[len(s.messages)-1].message
	t.last = &last
	for _, m := range s.messages {
		found := m.message
		switch {
		case found.Type == typeEvent:
			t.event = &found
		case found.Type == typeReset:
			t.section = found.ID
		case found.Anchor.Revision > t.anchor.Revision && found.Incarnation == last.Incarnation:
			t.anchor = found.Anchor
		}
	}
	if last.Type == typeReset {
		t.event = &last
	}
	return t
}
