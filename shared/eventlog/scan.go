package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/shared/etcdstore/kv"
)

// scan reads the events of one subject after one revision and up to another. It
// believes what is proven: the first event names one before it that is not
// newer than after, each further one names the one before, and behind the last
// one there is an event beyond upTo which names it, or the reader has seen
// itself that nothing followed.
type scan struct {
	r           *Reader
	subject     string
	after, upTo int64

	proven int64 // events has everything up to it
	events []kv.Event

	bytes int
	last  ID // last message on the subject
}

func (s *scan) run(ctx context.Context) error {
	s.proven = s.after
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := s.r.js.Stream(ctx, s.r.stream)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	past := past{stream: stream, js: s.r.js, name: s.r.stream}
	start, err := past.find(ctx, s.after)
	if err != nil {
		return err
	}
	s.r.note(func(st *Status) { st.OldestHistory = past.oldest })
	if past.oldest > s.after {
		return errNoHistory
	}
	s.last = ID{Revision: s.after}
	beyond := false
	err = past.each(ctx, start, s.subject, func(m *message) (bool, error) {
		if beyond = m.ID.Revision > s.upTo; beyond {
			return false, s.follows(m)
		}
		if err := s.add(m); err != nil {
			return false, err
		}
		return s.bytes < windowBytes, nil
	})
	if err != nil {
		s.trust(s.last.Revision - 1)
		return err
	}
	switch {
	case beyond:
		s.trust(s.upTo)
	case s.bytes >= windowBytes:
		// Other events of the last revision may follow.
		s.trust(s.last.Revision - 1)
		if s.proven <= s.after {
			return errNoHistory
		}
	default:
		if err := s.r.quiet(ctx, &past, s.subject, s.last, s.upTo); err != nil {
			s.trust(s.last.Revision - 1)
			return err
		}
		s.trust(s.upTo)
	}
	return nil
}

// follows tells whether a message names the one before it on the subject.
func (s *scan) follows(m *message) error {
	switch {
	case m.Type != typeEvent:
		return errNoHistory
	case s.last.unpublished() && m.OnSubject.Revision <= s.after:
		return nil // the first one
	case !s.last.unpublished() && m.OnSubject == s.last:
		return nil
	}
	return fmt.Errorf("%w: %s on %s follows %s, last seen %s", errNoHistory, m.ID, s.subject, m.OnSubject, s.last)
}

func (s *scan) add(m *message) error {
	if err := s.follows(m); err != nil {
		return err
	}
	if m.ID.Revision == s.last.Revision && m.ID.Epoch > s.last.Epoch {
		// A successor tells again a revision that its predecessor left
		// incomplete.
		for n := len(s.events); n > 0 && s.events[n-1].Revision == m.ID.Revision; n = len(s.events) {
			s.events = s.events[:n-1]
		}
	}
	s.last = m.ID
	s.events = append(s.events, m.Event)
	s.bytes += len(m.Event.Key) + len(m.Event.Value) + len(m.Event.Previous)
	return nil
}

// trust keeps the events up to a revision.
func (s *scan) trust(revision int64) {
	s.proven = max(s.after, revision)
	for n := len(s.events); n > 0 && s.events[n-1].Revision > s.proven; n = len(s.events) {
		s.events = s.events[:n-1]
	}
}

// past is the content of a stream.
type past struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	// oldest is the revision after which the stream has everything; set by
	// find.
	oldest int64
	// most is how many messages each reads at most; 0 means any number. Where there
	// are more, it reads none.
	most uint64
}

// at returns the first message at or after a sequence, on a subject, that a relay
// has written, with its sequence; nil where there is none.
func (p *past) at(ctx context.Context, sequence uint64, subject string) (*message, uint64, error) {
	for {
		raw, err := p.stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, 0, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("history: read message %d: %w", sequence, err)
		}
		if m := ours(raw); m != nil {
			return m, raw.Sequence, nil
		}
		sequence = raw.Sequence + 1
	}
}

// find returns the sequence of the first message about a revision after the
// given one, 0 if there is none.
func (p *past) find(ctx context.Context, after int64) (uint64, error) {
	info, err := p.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	if info.State.Msgs == 0 {
		return 0, errNoHistory
	}
	first, _, err := p.at(ctx, info.State.FirstSeq, ">")
	if err != nil || first == nil {
		return 0, errors.Join(err, errNoHistory)
	}
	// Before the first message nothing is known.
	p.oldest = first.InStream.Revision
	if first.InStream.unpublished() {
		p.oldest = first.ID.Revision
	}
	reset, err := lastOn(ctx, p.stream, p.name+resetSubject)
	if err != nil {
		return 0, err
	}
	if reset != nil {
		p.oldest = max(p.oldest, reset.ID.Revision)
	}
	return search(info.State.FirstSeq, info.State.LastSeq+1, func(sequence uint64) (bool, uint64, error) {
		m, at, err := p.at(ctx, sequence, ">")
		if m == nil {
			return true, sequence, err
		}
		return m.ID.Revision > after, at, nil
	})
}

// search returns the lowest sequence in [low, high) for which beyond is true,
// and high if there is none. Some sequences have no message: beyond then answers
// for the next one that has, and says which one that was. Once true, it is true
// for all that follow.
func search(low, high uint64, beyond func(uint64) (answer bool, of uint64, err error)) (uint64, error) {
	for low < high {
		middle := low + (high-low)/2
		answer, of, err := beyond(middle)
		if err != nil {
			return 0, err
		}
		if answer {
			high = middle
		} else {
			low = max(of, middle) + 1
		}
	}
	return high, nil
}

// each calls yield for the messages from a sequence on that are in the stream
// now, on one subject, until it returns false.
func (p *past) each(ctx context.Context, start uint64, subject string, yield func(*message) (bool, error)) error {
	consumer, err := p.js.CreateConsumer(ctx, p.name, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerLife, MaxDeliver: 1,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1), FilterSubject: subject,
	})
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = p.js.DeleteConsumer(ctx, p.name, consumer.CachedInfo().Name)
	}()
	if n := consumer.CachedInfo().NumPending; p.most != 0 && n > p.most {
		return fmt.Errorf("%w: %d messages would have to be read", errNoHistory, n)
	}
	const batch = 200
	for left := consumer.CachedInfo().NumPending; left > 0; {
		messages, err := consumer.Fetch(int(min(left, batch)), jetstream.FetchContext(ctx))
		if err != nil {
			return fmt.Errorf("history: %w", err)
		}
		got, goOn := uint64(0), true
		for raw := range messages.Messages() {
			got++
			m, err := decodeMessage(raw.Data())
			if err != nil || !goOn {
				continue
			}
			if goOn, err = yield(&m); err != nil {
				return err
			}
		}
		if !goOn {
			return nil
		}
		if err := messages.Error(); err != nil {
			return fmt.Errorf("history: %w", err)
		}
		if got == 0 {
			return errNoHistory // they are gone meanwhile
		}
		left -= min(left, got)
	}
	return nil
}
