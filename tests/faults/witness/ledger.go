package witness

import (
	"fmt"
	"sync"
)

// Shards is the number of values of the label by which watchers select.
const Shards = 4

// Label is the key of that label, and Serial the key in the data of a config map that
// counts its changes.
const (
	Label  = "shard"
	Serial = "serial"
)

// Key names a config map.
type Key struct{ Namespace, Name string }

// Change is a change by a writer.
type Change struct {
	// Revision is the revision in the answer, 0 for a deletion.
	Revision int64
	// Serial counts the changes of a key from 1. A deletion has the serial of the change
	// before it.
	Serial int
	// Shard is the value of the label; a deletion has -1.
	Shard int
}

// Ledger has every change, in order for each key. It is safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	changes map[Key][]Change
	total   int
	// deletions has the revisions of deletions, as reported by the first watcher.
	deletions map[Key]int64
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{changes: map[Key][]Change{}, deletions: map[Key]int64{}}
}

func (l *Ledger) add(key Key, c Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes[key] = append(l.changes[key], c)
	l.total++
}

// Len returns the number of changes.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Event is an event of a watch.
type Event struct {
	Key  Key
	Type string // ADDED, MODIFIED, DELETED
	// Revision is 0 for an expected deletion, whose revision is unknown.
	Revision int64
	Serial   int
}

// String formats an event in one line.
func (e Event) String() string {
	return fmt.Sprintf("%s %s/%s #%d @%d", e.Type, e.Key.Namespace, e.Key.Name, e.Serial, e.Revision)
}

// expected returns the events that a watcher must receive, by key.
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
				// A change that leaves the selector is a deletion, with the last matching
				// state and the revision of the change.
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

// agree returns the revision of a deletion: the first one that a watcher reports.
func (l *Ledger) agree(key Key, revision int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deletions[key] == 0 {
		l.deletions[key] = revision
	}
	return l.deletions[key]
}

// present returns the final objects of a view, by key.
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
