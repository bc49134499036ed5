package bytecache

import "sync/atomic"

// Kind tells apart the forms of one entry or change: one number per version,
// media type and whatever else decides about the bytes. See [NewKind].
type Kind uint32

var kinds atomic.Uint32

// NewKind returns a number that no other kind has. Kinds are made per resource and
// encoding, not per request: they are never reused.
func NewKind() Kind { return Kind(kinds.Add(1)) }

// form is one derived encoding.
type form struct {
	kind Kind
	data []byte
	next *form
	// used since the budget last looked at it.
	used atomic.Bool
}

// forms are the derived encodings of one thing, which is small until there are
// any. The budget knows only the list, lest it keep alive an object that is no more.
type forms struct{ list atomic.Pointer[formList] }

func (f *forms) get(kind Kind) ([]byte, bool) {
	if list := f.list.Load(); list != nil {
		return list.get(kind)
	}
	return nil, false
}

func (f *forms) put(budget *Budget, kind Kind, data []byte) {
	list := f.list.Load()
	if list == nil {
		f.list.CompareAndSwap(nil, &formList{})
		list = f.list.Load()
	}
	list.put(budget, kind, data)
}

// formList is a linked list, for there are few. It is replaced as a whole, so that
// readers need no lock.
type formList struct{ first atomic.Pointer[form] }

func (l *formList) find(kind Kind) *form {
	for at := l.first.Load(); at != nil; at = at.next {
		if at.kind == kind {
			return at
		}
	}
	return nil
}

func (l *formList) get(kind Kind) ([]byte, bool) {
	found := l.find(kind)
	if found == nil {
		return nil, false
	}
	if !found.used.Load() {
		found.used.Store(true)
	}
	return found.data, true
}

func (l *formList) put(budget *Budget, kind Kind, data []byte) {
	added := &form{kind: kind, data: data}
	for {
		added.next = l.first.Load()
		for at := added.next; at != nil; at = at.next {
			if at.kind == kind {
				return
			}
		}
		if l.first.CompareAndSwap(added.next, added) {
			budget.add(l, added)
			return
		}
	}
}

// spare tells whether the form was used since the last call.
func (l *formList) spare(kind Kind) bool {
	found := l.find(kind)
	return found != nil && found.used.Swap(false)
}

// drop takes one form out of the list. Only the budget calls it, one at a time.
func (l *formList) drop(kind Kind) {
	for {
		first := l.first.Load()
		var kept *form
		for at := first; at != nil; at = at.next {
			if at.kind != kind {
				copied := &form{kind: at.kind, data: at.data, next: kept}
				copied.used.Store(at.used.Load())
				kept = copied
			}
		}
		if l.first.CompareAndSwap(first, kept) {
			return
		}
	}
}
