package history

import "fmt"

// Verb is what a request does.
type Verb string

// The verbs of the model.
const (
	Get    Verb = "get"
	List   Verb = "list"
	Create Verb = "create"
	Update Verb = "update" // with a resourceVersion
	Patch  Verb = "patch"  // of the value, unconditional
	Delete Verb = "delete" // with a resourceVersion as precondition, or without
)

// Writes tells whether the verb may change something.
func (v Verb) Writes() bool { return v != Get && v != List }

// MaxKeys is how many keys a namespace of the model has at most.
const MaxKeys = 6

// Request is one to the API. Keys are numbers, 0 to MaxKeys-1.
type Request struct {
	Verb Verb
	Key  int
	// Value of a create, update or patch. No two requests of a history have the
	// same, so that none of them is a no-op.
	Value string
	// Revision is the resourceVersion of an update, or the precondition of a
	// delete; 0 in a delete stands for none.
	Revision int64
}

// Result says how a request ended.
type Result string

// The results of the model.
const (
	Done     Result = "done"
	Absent   Result = "absent"   // 404
	Exists   Result = "exists"   // 409 AlreadyExists
	Conflict Result = "conflict" // 409 Conflict
	// Refused requests have certainly not been carried out: no connection, 429.
	Refused Result = "refused"
	// Unknown requests may have been, or may yet be.
	Unknown Result = "unknown"
)

// Item is an object in an answer.
type Item struct {
	Revision int64
	Value    string
}

// Answer is what a client was told.
type Answer struct {
	Result Result
	// Item of a get, create, update or patch that is done.
	Item Item
	// Items and Revision of a list that is done.
	Items    map[int]Item
	Revision int64
	// Detail is for people: where the request went, what an error said.
	Detail string
}

// describe puts a request and its answer into one line.
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
