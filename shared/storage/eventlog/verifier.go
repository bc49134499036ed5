package eventlog

import (
	"errors"
	"fmt"

	"triune.dev/shared/storage/kv"
)

// errBroken means that a message does not follow the last one.
var errBroken = errors.New("broken chain")

// verifier checks the messages of a stream, one after another, against the chain of IDs. It
// does no I/O and must be used by one goroutine. The zero value accepts any first message as
// the start of the chain.
//
// It is synced from the first message that ends a complete revision. From there on it has seen
// all events up to complete.
type verifier struct {
	synced      bool
	incarnation uint64
	epoch       uint64
	event       ID // last event or reset
	complete    int64
	// partial holds the events of a revision whose last event has not arrived. If the relay
	// stopped there, its successor publishes the revision again.
	partial     []kv.Event
	nextIndex   uint32 // index that follows partial
	lastPartial ID     // last event of partial
}

// outcome is the effect of an accepted message on a reader.
type outcome struct {
	// synced says that the verifier is synced: it will return everything after complete.
	synced bool
	// reset says that the stream does not tell the changes up to complete.
	reset bool
	// events are the events of complete revisions, in order. They are valid until the next
	// call.
	events []kv.Event
}

// accept verifies the next message. After an error the verifier is useless; a new one must
// resume the chain.
func (v *verifier) accept(m *message) (outcome, error) {
	if v.incarnation == 0 {
		v.incarnation = m.Incarnation
	}
	if m.Incarnation != v.incarnation {
		return outcome{}, fmt.Errorf("%w: incarnation %x after %x", errBroken, m.Incarnation, v.incarnation)
	}
	if !v.synced {
		return v.sync(m), nil
	}
	if m.InStream != v.event {
		return outcome{}, fmt.Errorf("%w: %s follows %s, last seen %s", errBroken, m.ID, m.InStream, v.event)
	}
	if m.ID.Epoch < v.epoch {
		return outcome{}, fmt.Errorf("%w: %s after epoch %d", errBroken, m.ID, v.epoch)
	}
	if m.ID.Epoch > v.epoch {
		v.epoch, v.partial = m.ID.Epoch, v.partial[:0]
	}
	switch m.Type {
	case typeEvent:
		return v.change(m)
	case typeReset:
		if m.ID.Revision < v.complete || len(v.partial) != 0 {
			return outcome{}, fmt.Errorf("%w: reset %s after revision %d", errBroken, m.ID, v.complete)
		}
		v.event, v.complete = m.ID, m.ID.Revision
		return outcome{reset: true}, nil
	default:
		if len(v.partial) != 0 {
			return outcome{}, fmt.Errorf("%w: progress %s within revision %d", errBroken, m.ID, v.partial[0].Revision)
		}
		// A new relay may know less than the last one about the progress of other keys.
		// Complete never decreases.
		v.complete = max(v.complete, m.ID.Revision)
		return outcome{}, nil
	}
}

func (v *verifier) sync(m *message) outcome {
	v.epoch, v.event = m.ID.Epoch, m.ID
	if m.Type == typeProgress {
		v.event = m.InStream
	}
	if !m.ends() {
		return outcome{}
	}
	v.synced, v.complete = true, m.ID.Revision
	return outcome{synced: true}
}

func (v *verifier) change(m *message) (outcome, error) {
	if len(v.partial) == 0 {
		if m.ID.Revision <= v.complete || m.ID.Index != 0 {
			return outcome{}, fmt.Errorf("%w: event %s after revision %d", errBroken, m.ID, v.complete)
		}
	} else if m.ID.Revision != v.lastPartial.Revision || m.ID.Index != v.nextIndex {
		return outcome{}, fmt.Errorf("%w: event %s within revision %d", errBroken, m.ID, v.lastPartial.Revision)
	}
	v.event, v.lastPartial, v.nextIndex = m.ID, m.ID, m.ID.Index+1
	v.partial = append(v.partial, m.Event)
	if !m.Last {
		return outcome{}, nil
	}
	events := v.partial
	v.partial, v.complete = v.partial[:0], m.ID.Revision
	return outcome{events: events}, nil
}
