package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// state is the state of the namespace at a moment. It is a value: steps return new ones,
// and porcupine compares them with ==.
type state struct {
	// revision is a lower bound of etcd's revision.
	revision int64
	keys     [MaxKeys]entry
	// used has the lost writes that were executed.
	used [maxLost / 64]uint64
}

// entry is the state of a key. If its revision is 0, its value was never seen.
type entry struct {
	present  bool
	value    string
	revision int64
}

// call is a request with the time of its end.
type call struct {
	Request
	over int64
}

// lost is a write with an unknown outcome whose value, if it has one, was never seen.
type lost struct {
	Request
	sent int64
}

// maxLost bounds the number of lost writes.
const maxLost = 256

// modelWith returns the sequential behaviour of the API. Lost writes are not part of the
// history: a state executes one just before a request that could not be explained
// otherwise. That suffices, because a later execution makes no difference until a request
// reads its key.
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

// explain executes a request, after as few lost writes as its answer needs, and returns the
// possible states.
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
				if c.Verb != List { // deleted and created again
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

// after returns the state after each lost write to a key that was sent before a time.
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

// perform executes a write with an unseen revision and value, and reports whether it
// changes the state.
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

// step executes a request and reports whether the answer is correct.
func (s state) step(r Request, a Answer) (state, bool) {
	e := s.keys[r.Key]
	switch a.Result {
	case Absent:
		return s, r.Verb != Create && !e.present
	case Exists:
		return s, r.Verb == Create && e.present
	case Conflict:
		// A patch without a resourceVersion fails after several conflicts with other
		// writes, which proves nothing about the state.
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
		// The revision is unknown, but new.
		s.revision++
		s.keys[r.Key] = entry{}
		return s, true
	}
	return s, false
}

// shows reports whether an object in an answer is this one.
func (e entry) shows(item Item) bool {
	return e.present && e.value == item.Value && e.revision == item.Revision
}

// list checks that an answer has the whole namespace.
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

// write replaces an entry by an object, which must be newer than everything before.
func (s state) write(r Request, item Item, allowed bool) (state, bool) {
	if !allowed || item.Value != r.Value || item.Revision <= s.revision {
		return s, false
	}
	s.revision = item.Revision
	s.keys[r.Key] = entry{present: true, value: item.Value, revision: item.Revision}
	return s, true
}

// String formats a state for pictures of a history.
func (s state) String() string {
	out := fmt.Sprintf("≥%d", s.revision)
	for key, e := range s.keys {
		if e.present {
			out += fmt.Sprintf(" k%d=%s@%d", key, e.value, e.revision)
		}
	}
	return out
}
