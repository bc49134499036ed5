package etcdstore

import (
	"k8s.io/apimachinery/pkg/watch"

	"triune.dev/shared/storage/kv"
)

// needsPrevious tells whether the previous object has to be decoded: it is what
// a DELETED event shows, and what a selector is judged by.
func needsPrevious(kind kv.Kind, everything bool) bool {
	switch kind {
	case kv.Deleted:
		return true
	case kv.Modified:
		return !everything
	default:
		return false
	}
}

// Outcome is what a change means to a watcher.
type Outcome struct {
	// Event is empty if it means nothing.
	Event watch.EventType
	// Previous: the event shows the object as it was, at the change's revision.
	Previous bool
}

// Classify says what a watcher whose selector matches the object now, or matched
// it before, is told. An object that leaves the selection looks deleted, one
// that enters it looks added.
func Classify(kind kv.Kind, now, before bool) Outcome {
	now = now && kind != kv.Deleted
	before = before && kind != kv.Created
	switch {
	case now && before:
		return Outcome{Event: watch.Modified}
	case now:
		return Outcome{Event: watch.Added}
	case before:
		return Outcome{Event: watch.Deleted, Previous: true}
	default:
		return Outcome{}
	}
}
