package bytecache

import (
	"hash/maphash"
	"sync/atomic"
)

// Entry is one object at one revision. It never changes, except for what is
// derived from it and the way in which its bytes are held; it is safe for concurrent
// use.
type Entry struct {
	// Key is the object's key in etcd.
	Key string
	held
	// Revision is its mod revision, 0 where it is not known: the previous state in
	// a change that comes from history.
	Revision int64
	// Err says why there are no bytes: the stored ones could not be decrypted.
	Err error
	// Stale: what is stored is not what would be written for the same object,
	// because it is encrypted with a key that is no longer the one to use.
	Stale bool

	// absent are the bits that the Sketch of its labels does not have; 0 if there is none.
	absent Sketch
	// hash is that of the key, 0 until it was asked for.
	hash atomic.Uint64

	labels, fields attributes
	// mark is a Kind and a number, packed; 0 if there is none.
	mark  atomic.Uint64
	forms forms
}

// NewEntry makes an entry that belongs to no cache. It keeps data, which nobody may
// change.
func NewEntry(key string, revision int64, data []byte) *Entry {
	e := &Entry{Key: key, Revision: revision}
	e.hold(data)
	return e
}

// KeyHash is a number that depends on the key alone, and is another one in every process.
// It is found without following a pointer.
func (e *Entry) KeyHash() uint64 {
	if known := e.hash.Load(); known != 0 {
		return known
	}
	hash := maphash.String(keySeed, e.Key) | 1
	e.hash.Store(hash)
	return hash
}

var keySeed = maphash.MakeSeed()

// Mark returns the number that SetMark has put on the entry for a form.
func (e *Entry) Mark(kind Kind) (uint32, bool) {
	mark := e.mark.Load()
	return uint32(mark), Kind(mark>>32) == kind
}

// SetMark says of a form that needs no bytes of its own what else there is to know of
// it. It is found without following a pointer, and never dropped. An entry has room
// for one; ok is false if another form has it.
func (e *Entry) SetMark(kind Kind, number uint32) (ok bool) {
	mark := uint64(kind)<<32 | uint64(number)
	return e.mark.CompareAndSwap(0, mark) || e.mark.Load() == mark
}

// Attributes are what selectors are judged by: the labels of an object, or its
// selectable fields.
type Attributes = map[string]string

// attributes are found out when they are first needed.
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

// Form returns the derived bytes of the given form, made at the first call and
// whenever they have been dropped since. Two callers may make them at the same
// time; one of the results is kept. Errors are not kept.
func (e *Entry) Form(budget *Budget, kind Kind, render func(*Entry) ([]byte, error)) ([]byte, error) {
	if data, ok := e.forms.get(kind); ok {
		return data, nil
	}
	if e.Err != nil {
		return nil, e.Err
	}
	data, err := render(e)
	if err != nil {
		return nil, err
	}
	e.forms.put(budget, kind, data)
	return data, nil
}

// Kept returns a form only if it has been made and not been dropped since.
func (e *Entry) Kept(kind Kind) (data []byte, ok bool) { return e.forms.get(kind) }

// size is what the entry holds of memory as long as it is not compressed, without
// what is derived.
func (e *Entry) size() int64 {
	const overhead = 168 // the entry, its place in the tree, the headers
	return int64(len(e.Key)) + int64(e.Size()) + overhead
}
