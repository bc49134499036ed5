package eventlog

import (
	"errors"
	"fmt"

	"triune.dev/shared/etcdstore/kv"
)

// errBroken means that a message is not what must come after the last one.
var errBroken = errors.New("broken chain")

// verifier checks the messages of a stream, one after the other, against the
// chain of IDs. It does no I/O and is used by one goroutine. The zero value
// takes whatever comes first as the beginning.
//
// From its anchor on, the first message that ends a complete revision, it knows
// all events: complete is the revision up to which it has told them.
type verifier struct {
	anchored    bool
	incarnation uint64
	epoch       uint64
	event       ID // last event or reset
	complete    int64
	// partial are the events of a revision whose last one has not come. A
	// successor of the relay that stopped there tells them again.
	partial []kv.Event
	next    uint32 // index that follows partial
	open    ID     // last of partial
}

// step is what a message means to the one who follows the stream.
type step struct {
	// anchored says that the verifier begins to know: everything after complete
	// will be told.
	anchored bool
	// reset says that what happened until complete is not told.
	reset bool
	// events are complete revisions, in order. They are valid until the next
	// call.
	events []kv.Event
}

// accept takes the next message. After an error the verifier is of no use: the
// chain can only be taken up by a new one.
func (v *verifier) accept(m *message) (step, error) {
	if v.incarnation == 0 {
		v.incarnation = m.Incarnation
	}
	if m.Incarnation != v.incarnation {
		return step{}, fmt.Errorf("%w: incarnation %x after %x", errBroken, m.Incarnation, v.incarnation)
	}
	if !v.anchored {
		return v.anchor(m), nil
	}
	if m.InStream != v.event {
		return step{}, fmt.Errorf("%w: %s follows %s, last seen %s", errBroken, m.ID, m.InStream, v.event)
	}
	if m.ID.Epoch < v.epoch {
		return step{}, fmt.Errorf("%w: %s after epoch %d", errBroken, m.ID, v.epoch)
	}
	if m.ID.Epoch > v.epoch {
		v.epoch, v.partial = m.ID.Epoch, v.partial[:0]
	}
	switch m.Type {
	case typeEvent:
		return v.change(m)
	case typeReset:
		if m.ID.Revision < v.complete || len(v.partial) != 0 {
			return step{}, fmt.Errorf("%w: reset %s after revision %d", errBroken, m.ID, v.complete)
		}
		v.event, v.complete = m.ID, m.ID.Revision
		return step{reset: true}, nil
	default:
		if len(v.partial) != 0 {
			return step{}, fmt.Errorf("%w: progress %s within revision %d", errBroken, m.ID, v.partial[0].Revision)
		}
		// A new relay may know less of other keys' revisions than the last one
		// has told; that takes nothing back.
		v.complete = max(v.complete, m.ID.Revision)
		return step{}, nil
	}
}

func (v *verifier) anchor(m *message) step {
	v.epoch, v.event = m.ID.Epoch, m.ID
	if m.Type == typeProgress {
		v.event = m.InStream
	}
	if !m.ends() {
		return step{}
	}
	v.anchored, v.complete = true, m.ID.Revision
	return step{anchored: true}
}

func (v *verifier) change(m *message) (step, error) {
	if len(v.partial) == 0 {
		if m.ID.Revision <= v.complete || m.ID.Index != 0 {
			return step{}, fmt.Errorf("%w: event %s after revision %d", errBroken, m.ID, v.complete)
		}
	} else if m.ID.Revision != v.open.Revision || m.ID.Index != v.next {
		return step{}, fmt.Errorf("%w: event %s within revision %d", errBroken, m.ID, v.open.Revision)
	}
	v.event, v.open, v.next = m.ID, m.ID, m.ID.Index+1
	v.partial = append(v.partial, m.Event)
	if !m.Last {
		return step{}, nil
	}
	events := v.partial
	v.partial, v.complete = v.partial[:0], m.ID.Revision
	return step{events: events}, nil
}
