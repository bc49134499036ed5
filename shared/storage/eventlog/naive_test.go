package eventlog

import (
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/shared/storage/kv"
)

// Naive variants that seem sufficient. The hard cases run with each of them, to show that they
// find its bug.

// byRevision takes an event for new if its revision is, and a revision for complete after its
// first event.
type byRevision struct {
	begun bool
	last  int64
}

func (c *byRevision) accept(m *message, _ jetstream.Msg) (outcome, error) {
	if m.ID.Revision <= c.last {
		return outcome{}, nil
	}
	c.last = m.ID.Revision
	if !c.begun {
		c.begun = true
		return outcome{synced: true}, nil
	}
	if m.Type != typeEvent {
		return outcome{}, nil
	}
	return outcome{events: []kv.Event{m.Event}}, nil
}

func (c *byRevision) verifiedTo() (int64, bool) { return c.last, c.begun }

// bySequence knows complete revisions and epochs, but detects gaps by the consumer's sequence,
// as JetStream's ordered consumers do.
type bySequence struct {
	v        verifier
	consumer uint64
}

func (c *bySequence) accept(m *message, raw jetstream.Msg) (outcome, error) {
	meta, err := raw.Metadata()
	if err != nil {
		return outcome{}, err
	}
	// Another consumer counts from one again.
	if seq := meta.Sequence.Consumer; c.consumer != 0 && seq != 1 && seq != c.consumer+1 {
		return outcome{}, errors.New("gap in the sequence")
	}
	c.consumer = meta.Sequence.Consumer
	// Any message follows any other.
	if c.v.synced {
		m.InStream = c.v.event
		m.Incarnation = c.v.incarnation
		m.ID.Epoch = max(m.ID.Epoch, c.v.epoch)
	}
	s, err := c.v.accept(m)
	if err != nil {
		return outcome{}, nil // old, so it is dropped
	}
	s.reset = false
	return s, nil
}

func (c *bySequence) verifiedTo() (int64, bool) { return c.v.complete, c.v.synced }

func naiveRevision(r *Reader) {
	r.hooks.blind = true
	r.hooks.newChecker = func() checker { return &byRevision{} }
}

func naiveSequence(r *Reader) {
	r.hooks.blind = true
	r.hooks.newChecker = func() checker { return &bySequence{} }
}

// sequenceFence expects only the previous sequence, in a pipeline.
func sequenceFence(r *Relay) {
	r.hooks.limits = &pipelined
	r.hooks.fence = func(f *feed, _ *message) nats.Header {
		return nats.Header{jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(f.sequence, 10)}}
	}
}
