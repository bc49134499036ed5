package eventlog

import "triune.dev/shared/etcdstore/kv"

// sequencer gives the messages that a relay publishes into one stream their IDs
// and their places in the chain. It is the relay's whole knowledge of the
// stream, under one epoch; it does no I/O and is used by one goroutine.
type sequencer struct {
	incarnation, epoch uint64
	// last is the last message, and event the last that was not progress.
	last, event ID
	// section is the last reset, zero where the stream has none any more.
	section ID
	// complete is the revision up to which the stream tells everything.
	complete int64
	// subjects has the last event on each subject that is known.
	subjects map[string]ID
}

// knows tells whether the last event on a subject is known. If not, the caller
// looks it up in the stream, and tells it with learn.
func (s *sequencer) knows(subject string) bool { _, ok := s.subjects[subject]; return ok }

// learn notes the last event on a subject. The zero ID means that the stream
// has none, so that nothing is known of what came before this epoch. What stands
// before the last reset counts as none since then.
func (s *sequencer) learn(subject string, last ID) {
	switch {
	case last.unpublished():
		last = ID{Revision: s.complete}
	case last.Compare(s.section) < 0:
		last = ID{Revision: s.section.Revision}
	}
	s.subjects[subject] = last
}

// next returns the ID of the next message, if it is about revision.
func (s *sequencer) next(revision int64) ID {
	id := ID{Epoch: s.epoch, Revision: revision}
	if s.last.Epoch == s.epoch && s.last.Revision == revision {
		id.Index = s.last.Index + 1
	}
	return id
}

// change returns the message for an event on a known subject; last says that it
// is the last one of its revision in this stream.
func (s *sequencer) change(e kv.Event, subject string, last bool) message {
	m := message{
		Type: typeEvent, Incarnation: s.incarnation, ID: s.next(e.Revision), Last: last, Event: e,
		InStream: s.event, OnSubject: s.subjects[subject],
	}
	s.last, s.event, s.subjects[subject] = m.ID, m.ID, m.ID
	if last {
		s.complete = e.Revision
	}
	return m
}

// progress returns the message which says that everything up to revision has
// been published.
func (s *sequencer) progress(revision int64, at anchor) message {
	m := message{Type: typeProgress, Incarnation: s.incarnation, ID: s.next(revision), InStream: s.event, Anchor: at}
	s.last, s.complete = m.ID, revision
	return m
}

// reset returns the message which opens a new section after revision.
func (s *sequencer) reset(revision int64) message {
	m := message{Type: typeReset, Incarnation: s.incarnation, ID: s.next(revision), InStream: s.event}
	s.last, s.event, s.section, s.complete = m.ID, m.ID, m.ID, revision
	clear(s.subjects)
	return m
}
