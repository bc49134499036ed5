package eventlog

import (
	"cmp"
	"strconv"
)

// ID identifies a message of a stream.
type ID struct {
	// Epoch is that of the relay that published the message. It is higher each time that a
	// relay opens the stream.
	Epoch uint64
	// Revision is the etcd revision of an event, or the revision that a progress message or
	// reset refers to.
	Revision int64
	// Index numbers the messages of one revision, from 0.
	Index uint32
}

// unpublished reports whether no message has this ID. In OnSubject, such an ID says that the
// subject has had no event since ID.Revision.
func (id ID) unpublished() bool { return id.Epoch == 0 }

// String returns the ID in the form that errors and logs use.
func (id ID) String() string {
	b := make([]byte, 0, 48)
	b = strconv.AppendUint(b, id.Epoch, 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, id.Revision, 10)
	b = append(b, '.')
	return string(strconv.AppendUint(b, uint64(id.Index), 10))
}

// Compare orders IDs as their stream orders its messages.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Revision, other.Revision), cmp.Compare(id.Index, other.Index))
}
