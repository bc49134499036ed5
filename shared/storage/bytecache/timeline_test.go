package bytecache

import (
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/storage/kv"
)

// stored is the value of a key, and its mod revision.
type stored struct {
	value    string
	revision int64
}

// state is all keys at one revision.
type state map[string]stored

// below returns the keys with a prefix.
func (s state) below(prefix string) map[string]stored {
	out := map[string]stored{}
	for key, at := range s {
		if strings.HasPrefix(key, prefix) {
			out[key] = at
		}
	}
	return out
}

// timeline is the reference model: every state of an etcd, by revision. A restored backup
// is another timeline.
type timeline struct {
	states []state
	events [][]kv.Event
	// etcd cannot be read before compacted; the event log has no history after a revision
	// before floor.
	compacted, floor int64
}

func (l *timeline) now() int64 { return int64(len(l.states)) - 1 }

// backup returns a copy of the timeline up to a revision.
func (l *timeline) backup(revision int64) *timeline {
	return &timeline{
		states: slices.Clone(l.states[:revision+1]), events: slices.Clone(l.events[:revision+1]),
		compacted: min(l.compacted, revision), floor: min(l.floor, revision),
	}
}

// commit makes one revision of writes; "" deletes a key.
func (l *timeline) commit(writes map[string]string) {
	next := maps.Clone(l.states[l.now()])
	revision := l.now() + 1
	var events []kv.Event
	for _, key := range slices.Sorted(maps.Keys(writes)) {
		before, existed := next[key]
		e := kv.Event{Key: key, Revision: revision, Kind: kv.Created}
		if existed {
			e.Kind, e.Previous = kv.Modified, []byte(before.value)
		}
		if value := writes[key]; value != "" {
			e.Value = []byte(value)
			next[key] = stored{value, revision}
		} else {
			if !existed {
				continue
			}
			e.Kind = kv.Deleted
			delete(next, key)
		}
		events = append(events, e)
	}
	if len(events) > 0 {
		l.states, l.events = append(l.states, next), append(l.events, events)
	}
}

// between returns copies of the events after one revision and up to another.
func (l *timeline) between(after, upTo int64) []kv.Event {
	var out []kv.Event
	for _, events := range l.events[after+1 : upTo+1] {
		for _, e := range events {
			e.Value, e.Previous = slices.Clone(e.Value), slices.Clone(e.Previous)
			out = append(out, e)
		}
	}
	return out
}

// list answers a read as etcd does.
func (l *timeline) list(r kv.Range) (kv.Page, error) {
	at := r.Revision
	switch {
	case at == 0:
		at = l.now()
	case at > l.now():
		return kv.Page{}, rpctypes.ErrFutureRev
	case at < l.compacted:
		return kv.Page{}, rpctypes.ErrCompacted
	}
	page := kv.Page{Revision: l.now()}
	for _, key := range slices.Sorted(maps.Keys(l.states[at])) {
		if key < r.Start || key >= r.End {
			continue
		}
		page.Count++
		if r.Limit == 0 || int64(len(page.KVs)) < r.Limit {
			item := l.states[at][key]
			page.KVs = append(page.KVs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(item.value), ModRevision: item.revision})
		}
	}
	return page, nil
}
