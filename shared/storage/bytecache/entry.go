package bytecache

import (
	"hash/maphash"
	"sync/atomic"
)

// Entry is one object at one revision. It never changes, except for its derived forms and
// for whether its bytes are compressed. It is safe for concurrent use.
type Entry struct {
	// Key is the object's key in etcd.
	Key string
	storedBytes
	// Revision is the object's mod revision. It is 0 if unknown, for the previous state in
	// a change that was read from history.
	Revision int64
	// Err is the decryption error of an entry without bytes.
	Err error
	// Stale reports that the stored value is encrypted with a key that is no longer used
	// for writing.
	Stale bool

	// absent is the complement of the label filter, 0 if there is no filter.
	absent LabelFilter
	// hash is the hash of Key, 0 until KeyHash computes it.
	hash atomic.Uint64

	labels, fields attributes
	// mark is a FormID and a number, packed into one word, or 0.
	mark  atomic.Uint64
	forms forms
}

// NewEntry returns an entry that belongs to no cache. It retains data, which must not be
// modified.
func NewEntry(key string, revision int64, data []byte) *Entry {
	e := &Entry{Key: key, Revision: revision}
	e.hold(data)
	return e
}

// KeyHash returns a hash of the key, seeded per process. It needs no pointer to be
// followed.
func (e *Entry) KeyHash() uint64 {
	if known := e.hash.Load(); known != 0 {
		return known
	}
	hash := maphash.String(keySeed, e.Key) | 1
	e.hash.Store(hash)
	return hash
}

var keySeed = maphash.MakeSeed()

// Mark returns the number that SetMark stored for a form.
func (e *Entry) Mark(id FormID) (uint32, bool) {
	mark := e.mark.Load()
	return uint32(mark), FormID(mark>>32) == id
}

// SetMark stores a number for a form that needs no bytes of its own. Reading it follows no
// pointer, and it is never dropped. An entry has room for one mark; ok is false if another
// form already uses it.
func (e *Entry) SetMark(id FormID, number uint32) (ok bool) {
	mark := uint64(id)<<32 | uint64(number)
	return e.mark.CompareAndSwap(0, mark) || e.mark.Load() == mark
}

// Attributes are the values that selectors match: the labels of an object, or its
// selectable fields.
type Attributes = map[string]string

// attributes are computed on first use.
type attributes struct{ known atomic.Pointer[Attributes] }

func (a *attributes) get(e *Entry, find func(*Entry) (Attributes, error)) (Attributes, error) {
	if known := a.known.Load(); known != nil {
		return *known, nil
	}
	if e.Err != nil || find == nil {
		return nil, e.Err
	}
	found, err := find(e)
	if err != nil {
		return nil, err
	}
	a.known.Store(&found)
	return found, nil
}

// Form returns the given derived form, which render makes on the first call and again after
// the budget has dropped it. Concurrent callers may both render it; one of the results is
// cached. Errors are not cached.
func (e *Entry) Form(budget *Budget, id FormID, render func(*Entry) ([]byte, error)) ([]byte, error) {
	if data, ok := e.forms.get(id); ok {
		return data, nil
	}
	if e.Err != nil {
		return nil, e.Err
	}
	data, err := render(e)
	if err != nil {
		return nil, err
	}
	e.forms.put(budget, id, data)
	return data, nil
}

// CachedForm returns a form if it is cached; it never renders.
func (e *Entry) CachedForm(id FormID) (data []byte, ok bool) { return e.forms.get(id) }

// size returns the memory of the uncompressed entry in bytes, without its derived forms.
func (e *Entry) size() int64 {
	const overhead = 168 // the entry, its place in the tree, the headers
	return int64(len(e.Key)) + int64(e.Size()) + overhead
}
