package eventlog

import (
	"context"
	"fmt"
	"time"

	"triune.dev/shared/storage/kv"
)

// scan reads the events of one subject after one revision and up to another. It returns only
// proven events: the first event names a predecessor that is not newer than after, and every
// other event names the one before it. The end is proven by a later event that names the last
// one, or by the reader's coverage.
type scan struct {
	r           *Reader
	subject     string
	after, upTo int64

	proven int64 // events is complete up to this revision
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
	stored := storedStream{stream: stream, js: s.r.js, name: s.r.stream}
	start, err := stored.sequenceAfter(ctx, s.after)
	if err != nil {
		return err
	}
	s.r.updateStatus(func(st *Status) { st.OldestHistory = stored.oldest })
	if stored.oldest > s.after {
		return errNoHistory
	}
	s.last = ID{Revision: s.after}
	beyond := false
	err = stored.each(ctx, start, s.subject, func(m *message) (bool, error) {
		if beyond = m.ID.Revision > s.upTo; beyond {
			return false, s.follows(m)
		}
		if err := s.add(m); err != nil {
			return false, err
		}
		return s.bytes < maxWindowBytes, nil
	})
	if err != nil {
		s.trust(s.last.Revision - 1)
		return err
	}
	switch {
	case beyond:
		s.trust(s.upTo)
	case s.bytes >= maxWindowBytes:
		// Other events of the last revision may follow.
		s.trust(s.last.Revision - 1)
		if s.proven <= s.after {
			return errNoHistory
		}
	default:
		if err := s.r.proveQuiet(ctx, &stored, s.subject, s.last, s.upTo); err != nil {
			s.trust(s.last.Revision - 1)
			return err
		}
		s.trust(s.upTo)
	}
	return nil
}

// follows returns an error unless m names its predecessor on the subject.
func (s *scan) follows(m *message) error {
	switch {
	case m.Type != typeEvent:
		return errNoHistory
	case s.last.unpublished() && m.OnSubject.Revision <= s.after:
		return nil // first event
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
		// A successor publishes again a revision that its predecessor left incomplete.
		for n := len(s.events); n > 0 && s.events[n-1].Revision == m.ID.Revision; n = len(s.events) {
			s.events = s.events[:n-1]
		}
	}
	s.last = m.ID
	s.events = append(s.events, m.Event)
	s.bytes += len(m.Event.Key) + len(m.Event.Value) + len(m.Event.Previous)
	return nil
}

// trust keeps the events up to revision and drops the others.
func (s *scan) trust(revision int64) {
	s.proven = max(s.after, revision)
	for n := len(s.events); n > 0 && s.events[n-1].Revision > s.proven; n = len(s.events) {
		s.events = s.events[:n-1]
	}
}
