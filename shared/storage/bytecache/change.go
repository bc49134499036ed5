package bytecache

import "triune.dev/shared/storage/kv"

// Change is one event of the log. All its readers share it.
type Change struct {
	Kind     kv.Kind
	Key      string
	Revision int64
	// Now is the object after the change, nil for a deletion.
	Now *Entry
	// Before is the object before the change, nil for a creation.
	Before *Entry

	frames forms
}

// Frame returns the given derived form of the change, in the same way as Entry.Form.
func (c *Change) Frame(budget *Budget, id FormID, render func(*Change) ([]byte, error)) ([]byte, error) {
	if data, ok := c.frames.get(id); ok {
		return data, nil
	}
	data, err := render(c)
	if err != nil {
		return nil, err
	}
	c.frames.put(budget, id, data)
	return data, nil
}

// size returns the memory that the log retains for the change: the state before it. The
// state after it belongs to the tree or is the state before a later change.
func (c *Change) size() int64 {
	const overhead = 96
	size := int64(overhead)
	if c.Before != nil {
		size += c.Before.size()
	}
	return size
}
