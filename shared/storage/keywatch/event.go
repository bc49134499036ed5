package keywatch

import (
	"k8s.io/apimachinery/pkg/watch"

	"triune.dev/shared/storage/kv"
)

// Outcome is the event that a watcher gets for a change.
type Outcome struct {
	// Event is empty if there is no event.
	Event watch.EventType
	// Previous: the event shows the object as it was, at the change's revision.
	Previous bool
}

// Classify returns the outcome of a change for a watcher, given whether its selector
// matches the object now and matched it before. An object that starts to match is ADDED, one
// that stops is DELETED.
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
