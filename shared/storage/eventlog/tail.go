package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// tail describes the end of a stream.
type tail struct {
	// sequence is the last sequence of the stream, whether that message still exists or not.
	sequence uint64
	// last is the last message, nil if there is none that a relay published.
	last *message
	// event is the last stored event, nil if it could not be read.
	event *message
	// section is the last reset, zero if none is stored.
	section ID
	// anchor is the latest anchor in a progress message, zero if none is stored.
	anchor anchor
}

// errNoEnd means that a stream has messages, but not the one it says is its last. A relay has
// replaced that message meanwhile, somebody has deleted it, or two servers have answered, one of
// which does not know yet that the stream was recreated elsewhere.
var errNoEnd = errors.New("the last message of the stream is missing")

// readTail reads the end of a stream from its leader. The answer may be outdated a moment
// later, and messages may still be in flight; the fence detects both.
func readTail(ctx context.Context, s jetstream.Stream) (tail, error) {
	info, err := s.Info(ctx)
	if err != nil {
		return tail{}, fmt.Errorf("stream info: %w", err)
	}
	t := tail{sequence: info.State.LastSeq}
	if info.State.Msgs == 0 {
		return t, nil
	}
	raw, err := s.GetMsg(ctx, t.sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return tail{}, fmt.Errorf("%w: %d", errNoEnd, t.sequence)
	}
	if err != nil {
		return tail{}, fmt.Errorf("read message %d: %w", t.sequence, err)
	}
	if t.last = decodeStored(raw); t.last == nil {
		return t, nil
	}
	name := info.Config.Name
	if reset, err := lastOn(ctx, s, name+resetSubject); err != nil {
		return tail{}, err
	} else if reset != nil {
		t.section = reset.ID
	}
	for _, subject := range []string{progressSubject, fenceSubject} {
		progress, err := lastOn(ctx, s, name+subject)
		if err != nil {
			return tail{}, err
		}
		if progress != nil && progress.Incarnation == t.last.Incarnation && progress.Anchor.Revision > t.anchor.Revision {
			t.anchor = progress.Anchor
		}
	}
	if t.event = t.last; t.last.Type != typeEvent {
		t.event, err = lastOn(ctx, s, name+eventSubject+">")
	}
	return t, err
}

// lastOn returns the last message on a subject, or nil if there is none that a relay published.
func lastOn(ctx context.Context, s jetstream.Stream, subject string) (*message, error) {
	raw, err := s.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("last message on %s: %w", subject, err)
	}
	return decodeStored(raw), nil
}

// decodeStored decodes a message, or returns nil if no relay published it.
func decodeStored(raw *jetstream.RawStreamMsg) *message {
	m, err := decodeMessage(raw.Data)
	if err != nil {
		return nil
	}
	return &m
}

// complete returns the last revision of which the stream has all events.
func (t tail) complete() int64 {
	if t.last.ends() {
		return t.last.ID.Revision
	}
	return t.last.ID.Revision - 1
}

// chainEnd returns the last event or reset.
func (t tail) chainEnd() ID {
	if t.last.Type == typeProgress {
		return t.last.InStream
	}
	return t.last.ID
}

// verdict is a relay's decision about a stream.
type verdict int

const (
	// continueStream continues after the last complete revision.
	continueStream verdict = iota + 1
	// startSection starts with a reset: the stream is empty, or no relay published its last
	// message.
	startSection
	// recreateStream recreates the stream, which is not the one that etcd knows.
	recreateStream
	// stepDown does nothing: another relay has been elected since.
	stepDown
	// replaceHistory recreates the stream under another history, because it has events that
	// etcd does not have.
	replaceHistory
)

// evidence is the information for a verdict about a stream.
type evidence struct {
	epoch    uint64 // of this relay
	record   record // what etcd knows about the stream
	revision int64  // of etcd, read after the end of the stream
	// contradicted reports whether etcd lacks the last event or the anchor.
	contradicted bool
}

// judge decides what to do with a stream. A higher epoch is decisive: if this etcd issued it,
// its relay is a later one, which also explains any other oddity.
func (t tail) judge(e evidence) verdict {
	switch {
	case t.last == nil:
		return startSection
	case t.last.ID.Epoch > e.epoch && t.last.ID.Epoch <= uint64(e.revision):
		return stepDown
	case t.last.Incarnation != e.record.Incarnation && int64(t.last.ID.Epoch) < e.record.Revision:
		// A relay published this before the record was written: either the stream was about to
		// be recreated, or that relay was late. A record that was restored with its etcd is
		// older than the epoch of a stream that it does not describe.
		return recreateStream
	case t.last.Incarnation != e.record.Incarnation, t.last.ID.Epoch >= e.epoch, t.last.ID.Revision > e.revision, e.contradicted:
		return replaceHistory
	}
	return continueStream
}
