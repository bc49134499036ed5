package keywatch

import (
	"k8s.io/apimachinery/pkg/watch"

	"triune.dev/shared/storage/kv"
)

// Outcome says what a change means to a watcher.
type Outcome struct {
	// Event is empty if it means nothing.
	Event watch.EventType
	// Previous: the event shows the object as it was, at the change's revision.
	Previous bool
}

// Classify returns what a watcher is told whose selector matches the object now, or matched
// it before. An object that leaves the selection looks deleted, one that enters it looks
// added.
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
