package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// state is the namespace at a moment. It is a value: steps return new ones, and
// porcupine compares them with ==.
type state struct {
	// revision is one that etcd has certainly reached.
	revision int64
	keys     [MaxKeys]entry
	// used are the lost writes that have been carried out.
	used [maxLost / 64]uint64
}

// entry is a key. Nobody has ever seen the value of one whose revision is 0.
type entry struct {
	present  bool
	value    string
	revision int64
}

// call is a request with the time at which it was over.
type call struct {
	Request
	over int64
}

// lost is a write whose outcome nobody knows, and whose value, if it has one,
// nobody has seen.
type lost struct {
	Request
	sent int64
}

// maxLost bounds them.
const maxLost = 256

// modelWith is the sequential behaviour of the API. Lost writes are not part of
// the history: a state carries one out just before a request that could not be
// explained otherwise. That is enough, for nobody notices whether a write happens
// a little later, as long as nobody looks at its key.
func modelWith(all []lost) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, input, output any) []any {
			var next []any
			for _, n := range s.(state).explain(input.(call), output.(Answer), all) {
				next = append(next, n)
			}
			return next
		},
		DescribeOperation: func(input, output any) string { return describe(input.(call).Request, output.(Answer)) },
		DescribeState:     func(s any) string { return s.(state).String() },
	}).ToModel()
}

// explain carries out a request, after as few lost writes as its answer needs, and
// returns the states that can come of it.
func (s state) explain(c call, a Answer, all []lost) []state {
	if next, ok := s.step(c.Request, a); ok {
		return []state{next}
	}
	befores := []state{s}
	keys := []int{c.Key}
	if c.Verb == List {
		keys = keys[:0]
		for key, e := range s.keys {
			if _, listed := a.Items[key]; e.present && !listed {
				keys = append(keys, key)
			}
		}
	}
	for _, key := range keys {
		var more []state
		for _, before := range befores {
			for _, after := range before.after(key, c.over, all) {
				more = append(more, after)
				if c.Verb != List { // gone and back again
					more = append(more, after.after(key, c.over, all)...)
				}
			}
		}
		befores = more
	}
	var next []state
	for _, before := range befores {
		if n, ok := before.step(c.Request, a); ok {
			next = append(next, n)
		}
	}
	return next
}

// after returns what comes of each lost write to a key that was sent before a
// time.
func (s state) after(key int, before int64, all []lost) []state {
	var next []state
	for i, l := range all {
		if l.Key != key || l.sent > before || s.used[i/64]&(1<<(i%64)) != 0 {
			continue
		}
		if n, ok := s.perform(l.Request); ok {
			n.used[i/64] |= 1 << (i % 64)
			next = append(next, n)
		}
	}
	return next
}

// perform carries out a write whose revision and value nobody has seen, if that
// changes something.
func (s state) perform(r Request) (state, bool) {
	e := &s.keys[r.Key]
	switch r.Verb {
	case Create:
		if e.present {
			return s, false
		}
	case Update:
		if !e.present || e.revision != r.Revision {
			return s, false
		}
	case Patch:
		if !e.present {
			return s, false
		}
	case Delete:
		if !e.present || r.Revision != 0 && e.revision != r.Revision {
			return s, false
		}
		*e = entry{}
		return s, true
	}
	*e = entry{present: true, value: r.Value}
	return s, true
}

// step carries out a request and says whether the answer is the right one.
func (s state) step(r Request, a Answer) (state, bool) {
	e := s.keys[r.Key]
	switch a.Result {
	case Absent:
		return s, r.Verb != Create && !e.present
	case Exists:
		return s, r.Verb == Create && e.present
	case Conflict:
		// A patch without a resourceVersion gives up after it has lost against
		// others several times, which says nothing about the state.
		return s, r.Verb == Patch || e.present && e.revision != r.Revision
	}
	switch r.Verb {
	case List:
		return s.list(a)
	case Get:
		s.revision = max(s.revision, a.Item.Revision)
		return s, e.shows(a.Item)
	case Create:
		return s.write(r, a.Item, !e.present)
	case Update:
		return s.write(r, a.Item, e.present && e.revision == r.Revision)
	case Patch:
		return s.write(r, a.Item, e.present)
	case Delete:
		if !e.present || r.Revision != 0 && e.revision != r.Revision {
			return s, false
		}
		// Nobody is told the revision; it is a new one.
		s.revision++
		s.keys[r.Key] = entry{}
		return s, true
	}
	return s, false
}

// shows tells whether an object in an answer is this one.
func (e entry) shows(item Item) bool {
	return e.present && e.value == item.Value && e.revision == item.Revision
}

// list checks that an answer is the whole namespace.
func (s state) list(a Answer) (state, bool) {
	if a.Revision < s.revision {
		return s, false
	}
	for key, e := range s.keys {
		item, listed := a.Items[key]
		if listed != e.present || listed && (!e.shows(item) || item.Revision > a.Revision) {
			return s, false
		}
	}
	s.revision = a.Revision
	return s, true
}

// write puts an object in place. It is later than anything that was there before.
func (s state) write(r Request, item Item, allowed bool) (state, bool) {
	if !allowed || item.Value != r.Value || item.Revision <= s.revision {
		return s, false
	}
	s.revision = item.Revision
	s.keys[r.Key] = entry{present: true, value: item.Value, revision: item.Revision}
	return s, true
}

// String is for pictures of a history.
func (s state) String() string {
	out := fmt.Sprintf("≥%d", s.revision)
	for key, e := range s.keys {
		if e.present {
			out += fmt.Sprintf(" k%d=%s@%d", key, e.value, e.revision)
		}
	}
	return out
}
