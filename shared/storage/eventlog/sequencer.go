package eventlog

import "triune.dev/shared/storage/kv"

// sequencer assigns IDs and links to the messages that a relay publishes to one stream. It
// holds everything the relay knows about the stream under one epoch. It does no I/O and must be
// used by one goroutine.
type sequencer struct {
	incarnation, epoch uint64
	// last is the last message, and event the last one that was not progress.
	last, event ID
	// section is the last reset, zero if the stream no longer has one.
	section ID
	// complete is the revision up to which the stream is complete.
	complete int64
	// subjects maps each known subject to its last event.
	subjects map[string]ID
}

// knows reports whether the last event on a subject is known. If not, the caller looks it up in
// the stream and calls learn.
func (s *sequencer) knows(subject string) bool { _, ok := s.subjects[subject]; return ok }

// learn records the last event on a subject. The zero ID means that the stream has none, so
// that nothing is known about the time before this epoch. An event before the last reset counts
// as none since that reset.
func (s *sequencer) learn(subject string, last ID) {
	switch {
	case last.unpublished():
		last = ID{Revision: s.complete}
	case last.Compare(s.section) < 0:
		last = ID{Revision: s.section.Revision}
	}
	s.subjects[subject] = last
}

// next returns the ID of the next message if its revision is revision.
func (s *sequencer) next(revision int64) ID {
	id := ID{Epoch: s.epoch, Revision: revision}
	if s.last.Epoch == s.epoch && s.last.Revision == revision {
		id.Index = s.last.Index + 1
	}
	return id
}

// change returns the message for an event on a known subject. last marks the last event of the
// revision in this stream.
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

// progress returns the message which says that everything up to revision has been published.
func (s *sequencer) progress(revision int64, at anchor) message {
	m := message{Type: typeProgress, Incarnation: s.incarnation, ID: s.next(revision), InStream: s.event, Anchor: at}
	s.last, s.complete = m.ID, revision
	return m
}

// reset returns the message which starts a new section after revision.
func (s *sequencer) reset(revision int64) message {
	m := message{Type: typeReset, Incarnation: s.incarnation, ID: s.next(revision), InStream: s.event}
	s.last, s.event, s.section, s.complete = m.ID, m.ID, m.ID, revision
	clear(s.subjects)
	return m
}
