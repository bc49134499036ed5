package eventlog

import (
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/shared/etcdstore/kv"
)

// The variants that look as if they would do, each planted into the tests of
// the hard cases to show that those tests would find it.

// byRevision believes that an event is new if its revision is, and that a
// revision is complete when its first event has come.
type byRevision struct {
	begun bool
	last  int64
}

func (c *byRevision) accept(m *message, _ jetstream.Msg) (step, error) {
	if m.ID.Revision <= c.last {
		return step{}, nil
	}
	c.last = m.ID.Revision
	if !c.begun {
		c.begun = true
		return step{anchored: true}, nil
	}
	if m.Type != typeEvent {
		return step{}, nil
	}
	return step{events: []kv.Event{m.Event}}, nil
}

func (c *byRevision) position() (int64, bool) { return c.last, c.begun }

// bySequence knows complete revisions and epochs, but looks for gaps in the
// consumer's sequence, as JetStream's ordered consumers do.
type bySequence struct {
	v        verifier
	consumer uint64
}

func (c *bySequence) accept(m *message, raw jetstream.Msg) (step, error) {
	meta, err := raw.Metadata()
	if err != nil {
		return step{}, err
	}
	// Another consumer counts from one again.
	if seq := meta.Sequence.Consumer; c.consumer != 0 && seq != 1 && seq != c.consumer+1 {
		return step{}, errors.New("gap in the sequence")
	}
	c.consumer = meta.Sequence.Consumer
	// Whatever comes follows whatever came.
	if c.v.anchored {
		m.InStream = c.v.event
		m.Incarnation = c.v.incarnation
		m.ID.Epoch = max(m.ID.Epoch, c.v.epoch)
	}
	s, err := c.v.accept(m)
	if err != nil {
		return step{}, nil // old: dropped
	}
	s.reset = false
	return s, nil
}

func (c *bySequence) position() (int64, bool) { return c.v.complete, c.v.anchored }

func naiveRevision(r *Reader) {
	r.seams.blind = true
	r.seams.checker = func() checker { return &byRevision{} }
}

func naiveSequence(r *Reader) {
	r.seams.blind = true
	r.seams.checker = func() checker { return &bySequence{} }
}

// sequenceFence expects the number of the message before and nothing else, in a
// pipeline.
func sequenceFence(r *Relay) {
	r.seams.limits = &pipelined
	r.seams.fence = func(f *feed, _ *message) nats.Header {
		return nats.Header{jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(f.sequence, 10)}}
	}
}
