package bytecache

import "sync/atomic"

// FormID identifies a derived form of an entry or change: one number for each API version,
// media type and every other property that determines the bytes. See [NewFormID].
type FormID uint32

var lastFormID atomic.Uint32

// NewFormID returns an unused FormID. IDs are never reused, so they are allocated for each
// resource and encoding, not for each request.
func NewFormID() FormID { return FormID(lastFormID.Add(1)) }

// form is one derived form.
type form struct {
	id   FormID
	data []byte
	next *form
	// used is set by reads and cleared by the budget.
	used atomic.Bool
}

// forms are the derived forms of one entry or change. The budget references only the list,
// so that it does not keep a discarded entry alive.
type forms struct{ list atomic.Pointer[formList] }

func (f *forms) get(id FormID) ([]byte, bool) {
	if list := f.list.Load(); list != nil {
		return list.get(id)
	}
	return nil, false
}

func (f *forms) put(budget *Budget, id FormID, data []byte) {
	list := f.list.Load()
	if list == nil {
		f.list.CompareAndSwap(nil, &formList{})
		list = f.list.Load()
	}
	list.put(budget, id, data)
}

// formList is a linked list, because there are few forms. Readers need no lock: the head is
// replaced atomically.
type formList struct{ first atomic.Pointer[form] }

func (l *formList) find(id FormID) *form {
	for at := l.first.Load(); at != nil; at = at.next {
		if at.id == id {
			return at
		}
	}
	return nil
}

func (l *formList) get(id FormID) ([]byte, bool) {
	found := l.find(id)
	if found == nil {
		return nil, false
	}
	if !found.used.Load() {
		found.used.Store(true)
	}
	return found.data, true
}

func (l *formList) put(budget *Budget, id FormID, data []byte) {
	added := &form{id: id, data: data}
	for {
		added.next = l.first.Load()
		for at := added.next; at != nil; at = at.next {
			if at.id == id {
				return
			}
		}
		if l.first.CompareAndSwap(added.next, added) {
			budget.add(l, added)
			return
		}
	}
}

// clearUsed reports whether the form was used since the last call.
func (l *formList) clearUsed(id FormID) bool {
	found := l.find(id)
	return found != nil && found.used.Swap(false)
}

// drop removes one form from the list. Only the budget calls it, one call at a time.
func (l *formList) drop(id FormID) {
	for {
		first := l.first.Load()
		var remaining *form
		for at := first; at != nil; at = at.next {
			if at.id != id {
				copied := &form{id: at.id, data: at.data, next: remaining}
				copied.used.Store(at.used.Load())
				remaining = copied
			}
		}
		if l.first.CompareAndSwap(first, remaining) {
			return
		}
	}
}
