package history

import "fmt"

// Verb is the verb of a request.
type Verb string

// The verbs of the model.
const (
	Get    Verb = "get"
	List   Verb = "list"
	Create Verb = "create"
	Update Verb = "update" // with a resourceVersion
	Patch  Verb = "patch"  // of the value, unconditional
	Delete Verb = "delete" // with or without a resourceVersion as precondition
)

// Writes reports whether the verb may change something.
func (v Verb) Writes() bool { return v != Get && v != List }

// MaxKeys bounds the keys of a namespace of the model.
const MaxKeys = 6

// Request is a request to the API. Keys are numbers from 0 to MaxKeys-1.
type Request struct {
	Verb Verb
	Key  int
	// Value is the value of a create, update or patch. It is unique in a history, so that
	// no write is a no-op.
	Value string
	// Revision is the resourceVersion of an update, or the precondition of a delete, which
	// is optional (0).
	Revision int64
}

// Result is the outcome of a request.
type Result string

// The results of the model.
const (
	Done     Result = "done"
	Absent   Result = "absent"   // 404
	Exists   Result = "exists"   // 409 AlreadyExists
	Conflict Result = "conflict" // 409 Conflict
	// Refused requests were certainly not executed: no connection, 429.
	Refused Result = "refused"
	// Unknown requests may have been executed, or may be executed later.
	Unknown Result = "unknown"
)

// Item is an object in an answer.
type Item struct {
	Revision int64
	Value    string
}

// Answer is the answer to a request.
type Answer struct {
	Result Result
	// Item is the object of a successful get, create, update or patch.
	Item Item
	// Items and Revision are the result of a successful list.
	Items    map[int]Item
	Revision int64
	// Detail is for people: the server and the text of an error.
	Detail string
}

// describe formats a request and its answer in one line.
func describe(r Request, a Answer) string {
	s := fmt.Sprintf("%s k%d", r.Verb, r.Key)
	switch {
	case r.Verb == List:
		s = "list"
	case r.Revision != 0:
		s += fmt.Sprintf(" if @%d", r.Revision)
	}
	if r.Value != "" {
		s += " := " + r.Value
	}
	s += " → " + string(a.Result)
	switch {
	case a.Result != Done || r.Verb == Delete:
	case r.Verb == List:
		s += fmt.Sprintf(" @%d {", a.Revision)
		for key := range MaxKeys {
			if item, ok := a.Items[key]; ok {
				s += fmt.Sprintf(" k%d=%s@%d", key, item.Value, item.Revision)
			}
		}
		s += " }"
	default:
		s += fmt.Sprintf(" %s@%d", a.Item.Value, a.Item.Revision)
	}
	if a.Detail != "" {
		s += " (" + a.Detail + ")"
	}
	return s
}
