package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamOptions are what an operator decides about the streams.
type StreamOptions struct {
	// Memory keeps the streams in memory instead of in files. They are lost
	// with the server then, which costs history and nothing else.
	Memory bool
	// Replicas is how many servers keep a copy; 0 means 1.
	Replicas int
	// MaxAge is how long events are kept; 0 means DefaultMaxAge.
	MaxAge time.Duration
	// MaxBytes bounds each stream; 0 means DefaultFileBytes or, with Memory,
	// DefaultMemoryBytes, -1 no bound. Where NATS has no room for so many, the stream
	// keeps less.
	MaxBytes int64
}

// Defaults of StreamOptions. etcd keeps five to ten minutes of history under
// kube-apiserver's default compaction; in ten minutes of the load that docs/scaling.md
// plans for, 3.8 GB are published.
const (
	DefaultMaxAge      = time.Hour
	DefaultFileBytes   = 4 << 30
	DefaultMemoryBytes = 1 << 30
	// leastBytes is what a stream keeps where there is no room for more.
	leastBytes = 256 << 20
)

// config is the stream's configuration.
//
// There is no limit per subject: each progress message rolls up its subject, which
// removes the one before.
func (o StreamOptions) config(name string) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        name,
		Description: "changes of etcd, published by Triune's relay",
		Subjects:    []string{name + allSubjects},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		Replicas:    max(o.Replicas, 1),
		MaxAge:      o.MaxAge,
		MaxBytes:    o.MaxBytes,
		AllowRollup: true,
		// Replicated streams are published to in batches.
		AllowAtomicPublish: true,
		// Messages have no IDs that NATS could know them by. A server that starts
		// looks for them in what is younger than this.
		Duplicates: 100 * time.Millisecond,
	}
	preset := int64(DefaultFileBytes)
	if o.Memory {
		c.Storage, preset = jetstream.MemoryStorage, DefaultMemoryBytes
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = preset
	}
	return c
}

// tail is the end of a stream as it was read.
type tail struct {
	// sequence is that of the last message, whether it is still there or not.
	sequence uint64
	// last is the last message, nil where there is none that a relay has
	// written.
	last *message
	// event is the last event that is kept, nil where it could not be read.
	event *message
	// section is the last reset, zero where none is kept.
	section ID
	// anchor is that of the last progress, zero where none is kept.
	anchor anchor
}

// readTail asks the stream's leader. What it says may be out of date a moment
// later, and messages may still be under way; the fence tells.
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
		return t, nil
	}
	if err != nil {
		return tail{}, fmt.Errorf("read message %d: %w", t.sequence, err)
	}
	if t.last = ours(raw); t.last == nil {
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

// ours decodes a message, or returns nil if it is not a relay's.
func ours(raw *jetstream.RawStreamMsg) *message {
	m, err := decodeMessage(raw.Data)
	if err != nil {
		return nil
	}
	return &m
}

// complete is the last revision that the stream tells whole.
func (t tail) complete() int64 {
	if t.last.ends() {
		return t.last.ID.Revision
	}
	return t.last.ID.Revision - 1
}

// chain is the last event or reset.
func (t tail) chain() ID {
	if t.last.Type == typeProgress {
		return t.last.InStream
	}
	return t.last.ID
}

// lastOn returns the last message on a subject, nil if there is none that the
// relay has written.
func lastOn(ctx context.Context, s jetstream.Stream, subject string) (*message, error) {
	raw, err := s.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("last message on %s: %w", subject, err)
	}
	return ours(raw), nil
}

// verdict is what a relay does with the stream it finds.
type verdict int

const (
	// goOn continues after the last complete revision.
	goOn verdict = iota + 1
	// openSection begins with a reset: the stream is empty, or its end is not
	// a relay's.
	openSection
	// makeAnew deletes the stream, which is not the one that etcd knows.
	makeAnew
	// giveWay does nothing: another relay has been elected since.
	giveWay
	// denyHistory makes all streams anew, under another history: this one tells
	// what etcd does not have.
	denyHistory
)

// evidence is what a relay knows when it looks at the end of a stream.
type evidence struct {
	epoch    uint64 // its own
	record   record // what etcd knows of the stream
	revision int64  // that etcd has reached since the end was read
	// contradicted: etcd does not have the last event, or the anchor.
	contradicted bool
}

// judge decides. A higher epoch decides alone: if it was given by this etcd, the
// relay that has it came later, and whatever else is odd is of its making.
func (t tail) judge(e evidence) verdict {
	switch {
	case t.last == nil:
		return openSection
	case t.last.ID.Epoch > e.epoch && t.last.ID.Epoch <= uint64(e.revision):
		return giveWay
	case t.last.Incarnation != e.record.Incarnation && int64(t.last.ID.Epoch) < e.record.Revision:
		// Whoever has written it was a relay before the record was written: the
		// stream was to be made anew, or he came late. A record that went back with
		// its etcd is older than the epoch of a stream that it does not know.
		return makeAnew
	case t.last.Incarnation != e.record.Incarnation, t.last.ID.Epoch >= e.epoch, t.last.ID.Revision > e.revision, e.contradicted:
		return denyHistory
	}
	return goOn
}
