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
	// MaxBytes bounds each stream; 0 means DefaultMaxBytes, -1 no bound.
	MaxBytes int64
}

// Defaults of StreamOptions. etcd keeps five minutes of history under
// kube-apiserver's default compaction.
const (
	DefaultMaxAge   = time.Hour
	DefaultMaxBytes = 1 << 30
)

// config is the stream's configuration.
//
// The last message must never be removed while the stream is in use: a server
// that starts again takes the last message ID, which fences publishers, from it.
// So progress neither expires nor counts towards a limit per subject; each
// progress message rolls up its subject, which removes the one before.
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
		// Nothing relies on de-duplication; the shortest window that NATS
		// takes costs the least memory.
		Duplicates: 100 * time.Millisecond,
	}
	if o.Memory {
		c.Storage = jetstream.MemoryStorage
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	return c
}

// tail is the end of a stream as it was read.
type tail struct {
	// sequence is that of the last message, whether it is still there or not.
	sequence uint64
	// last is the last message, nil where there is none that the relay has
	// written: then the sequence has to fence the next message.
	last *message
	// event is the last event that is kept, nil where it could not be read.
	event *message
	// section is the last reset, zero where none is kept.
	section ID
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
	if t.event = t.last; t.last.Type != typeEvent {
		t.event, err = lastOn(ctx, s, name+eventSubject+">")
	}
	return t, err
}

// ours decodes a message, or returns nil if it is not a relay's.
func ours(raw *jetstream.RawStreamMsg) *message {
	m, err := decodeMessage(raw.Data)
	if err != nil || raw.Header.Get(jetstream.MsgIDHeader) != m.header() {
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
	// replace deletes the stream, which tells another history than etcd has.
	replace
)

// judge decides; revision is one that etcd has reached after the tail was read,
// and contradicted tells that etcd does not have the tail's last event.
func (t tail) judge(incarnation uint64, revision int64, contradicted bool) verdict {
	switch {
	case t.last == nil:
		return openSection
	case t.last.Incarnation != incarnation, t.last.ID.Revision > revision, contradicted:
		return replace
	}
	return goOn
}
