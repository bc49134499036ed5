package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// storedStream reads the stored messages of a stream.
type storedStream struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	// oldest is the revision after which the stream has everything; set by sequenceAfter.
	oldest int64
	// maxMessages bounds the messages that each reads; 0 means no bound. If there are more,
	// each fails and reads none.
	maxMessages uint64
}

// firstAt returns the first message at or after a sequence on a subject, and its sequence. It
// ignores messages that no relay published and returns nil if there are no others.
func (s *storedStream) firstAt(ctx context.Context, sequence uint64, subject string) (*message, uint64, error) {
	for {
		raw, err := s.stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, 0, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("history: read message %d: %w", sequence, err)
		}
		if m := decodeStored(raw); m != nil {
			return m, raw.Sequence, nil
		}
		sequence = raw.Sequence + 1
	}
}

// sequenceAfter returns the sequence of the first message with a revision after the given one,
// or 0 if there is none.
func (s *storedStream) sequenceAfter(ctx context.Context, after int64) (uint64, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	if info.State.Msgs == 0 {
		return 0, errNoHistory
	}
	first, _, err := s.firstAt(ctx, info.State.FirstSeq, ">")
	if err != nil || first == nil {
		return 0, errors.Join(err, errNoHistory)
	}
	// Nothing is known about the time before the first message.
	s.oldest = first.InStream.Revision
	if first.InStream.unpublished() {
		s.oldest = first.ID.Revision
	}
	reset, err := lastOn(ctx, s.stream, s.name+resetSubject)
	if err != nil {
		return 0, err
	}
	if reset != nil {
		s.oldest = max(s.oldest, reset.ID.Revision)
	}
	return search(info.State.FirstSeq, info.State.LastSeq+1, func(sequence uint64) (bool, uint64, error) {
		m, at, err := s.firstAt(ctx, sequence, ">")
		if m == nil {
			return true, sequence, err
		}
		return m.ID.Revision > after, at, nil
	})
}

// search returns the lowest sequence in [low, high) for which beyond is true, or high if there
// is none. beyond must be monotonic. If a sequence has no message, beyond answers for the next
// one that has, and returns its sequence as found.
func search(low, high uint64, beyond func(uint64) (answer bool, found uint64, err error)) (uint64, error) {
	for low < high {
		middle := low + (high-low)/2
		answer, found, err := beyond(middle)
		if err != nil {
			return 0, err
		}
		if answer {
			high = middle
		} else {
			low = max(found, middle) + 1
		}
	}
	return high, nil
}

// each calls yield for the messages that the stream has now, on one subject, from a sequence
// on, until yield returns false.
func (s *storedStream) each(ctx context.Context, start uint64, subject string, yield func(*message) (bool, error)) error {
	consumer, err := s.js.CreateConsumer(ctx, s.name, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerInactiveThreshold, MaxDeliver: 1,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1), FilterSubject: subject,
	})
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.js.DeleteConsumer(ctx, s.name, consumer.CachedInfo().Name)
	}()
	if n := consumer.CachedInfo().NumPending; s.maxMessages != 0 && n > s.maxMessages {
		return fmt.Errorf("%w: would read %d messages", errNoHistory, n)
	}
	const batch = 200
	for left := consumer.CachedInfo().NumPending; left > 0; {
		messages, err := consumer.Fetch(int(min(left, batch)), jetstream.FetchContext(ctx))
		if err != nil {
			return fmt.Errorf("history: %w", err)
		}
		got, more := uint64(0), true
		for raw := range messages.Messages() {
			got++
			m, err := decodeMessage(raw.Data())
			if err != nil || !more {
				continue
			}
			if more, err = yield(&m); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		if err := messages.Error(); err != nil {
			return fmt.Errorf("history: %w", err)
		}
		if got == 0 {
			return errNoHistory // the stream has discarded them
		}
		left -= min(left, got)
	}
	return nil
}
