package witness

import (
	"fmt"
	"sync"
)

// Shards is how many values the label has by which watchers select.
const Shards = 4

// Label is its key, and Serial the key in the data of a config map that counts
// its changes.
const (
	Label  = "shard"
	Serial = "serial"
)

// Key names a config map.
type Key struct{ Namespace, Name string }

// Change is one that a writer made.
type Change struct {
	// Revision that the writer was told, 0 for a deletion.
	Revision int64
	// Serial counts the changes of a key from 1. A deletion has that of the
	// change before it.
	Serial int
	// Shard is the label; a deletion has -1.
	Shard int
}

// Ledger has every change that was made, in order for each key. It is safe for
// concurrent use.
type Ledger struct {
	mu      sync.Mutex
	changes map[Key][]Change
	total   int
	// deletions are their revisions, as the first watcher that saw one says.
	deletions map[Key]int64
}

// NewLedger returns an empty one.
func NewLedger() *Ledger {
	return &Ledger{changes: map[Key][]Change{}, deletions: map[Key]int64{}}
}

func (l *Ledger) add(key Key, c Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes[key] = append(l.changes[key], c)
	l.total++
}

// Len is the number of changes.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Event is what a watcher is told.
type Event struct {
	Key  Key
	Type string // ADDED, MODIFIED, DELETED
	// Revision is 0 in what is expected of a deletion: nobody was told it.
	Revision int64
	Serial   int
}

// String is one line.
func (e Event) String() string {
	return fmt.Sprintf("%s %s/%s #%d @%d", e.Type, e.Key.Namespace, e.Key.Name, e.Serial, e.Revision)
}

// expected is what a watcher must be told of each key.
func (l *Ledger) expected(v View) map[Key][]Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[Key][]Event{}
	for key, changes := range l.changes {
		if v.Namespace != "" && v.Namespace != key.Namespace {
			continue
		}
		seen, last := false, Change{}
		for _, c := range changes {
			in := c.Shard >= 0 && v.selects(c.Shard)
			e := Event{Key: key, Revision: c.Revision, Serial: c.Serial}
			switch {
			case in && !seen:
				e.Type = "ADDED"
			case in:
				e.Type = "MODIFIED"
			case seen:
				// What leaves the selector is deleted, with its last state
				// inside and the revision of the change.
				e.Type, e.Serial = "DELETED", last.Serial
			}
			if e.Type != "" {
				all[key] = append(all[key], e)
			}
			seen, last = in, c
		}
	}
	return all
}

// agree tells which revision a deletion has: the first one that anybody says.
func (l *Ledger) agree(key Key, revision int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deletions[key] == 0 {
		l.deletions[key] = revision
	}
	return l.deletions[key]
}

// present is what exists for a view at the end: serials by key.
func (l *Ledger) present(v View) map[Key]Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[Key]Change{}
	for key, changes := range l.changes {
		last := changes[len(changes)-1]
		if (v.Namespace == "" || v.Namespace == key.Namespace) && last.Shard >= 0 && v.selects(last.Shard) {
			all[key] = last
		}
	}
	return all
}
