package bytecache

import "triune.dev/shared/etcdstore/kv"

// Change is one event of the log, shared by all who read it.
type Change struct {
	Kind     kv.Kind
	Key      string
	Revision int64
	// Now is the object after the change, nil for a deletion.
	Now *Entry
	// Before is the object before it, nil for a creation.
	Before *Entry

	frames forms
}

// Frame returns the derived bytes of the given form, as Entry.Form does.
func (c *Change) Frame(budget *Budget, kind Kind, render func(*Change) ([]byte, error)) ([]byte, error) {
	if data, ok := c.frames.get(kind); ok {
		return data, nil
	}
	data, err := render(c)
	if err != nil {
		return nil, err
	}
	c.frames.put(budget, kind, data)
	return data, nil
}

// size is what the log holds for the change: the state before it is kept for the
// log alone, the one after it for the tree, or as the state before a later change.
func (c *Change) size() int64 {
	const overhead = 96
	size := int64(overhead)
	if c.Before != nil {
		size += c.Before.size()
	}
	return size
}
