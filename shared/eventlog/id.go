package eventlog

import (
	"cmp"
	"strconv"
)

// ID identifies a message of a stream.
type ID struct {
	// Epoch is the relay's; each time that a relay begins to publish it has a
	// higher one.
	Epoch uint64
	// Revision is the etcd revision of an event, or the one that progress and
	// resets are about.
	Revision int64
	// Index counts the messages of one revision.
	Index uint32
}

// unpublished tells that no message has this ID. As the predecessor of an event
// on its subject it says that there was none since ID.Revision.
func (id ID) unpublished() bool { return id.Epoch == 0 }

// String returns the ID as it stands in the headers.
func (id ID) String() string {
	b := make([]byte, 0, 48)
	b = strconv.AppendUint(b, id.Epoch, 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, id.Revision, 10)
	b = append(b, '.')
	return string(strconv.AppendUint(b, uint64(id.Index), 10))
}

// Compare orders messages as their stream does.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Revision, other.Revision), cmp.Compare(id.Index, other.Index))
}
