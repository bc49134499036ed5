package reads

import (
	"sync"
	"sync/atomic"
	"time"

	"triune.dev/shared/bytecache"
)

// rowKey names the row of an object at a revision: the entry's, but for the event of a
// deletion.
type rowKey struct {
	entry    *bytecache.Entry
	revision int64
	style    tableStyle
}

// rowOf names the row of an object in a style, below headers or without: it is the same.
func rowOf(e *bytecache.Entry, revision int64, s tableStyle) rowKey {
	s.noHeaders = false
	return rowKey{e, revision, s}
}

// row is one encoded row.
type row struct {
	data []byte
	// until: before this time the same row would be made again.
	until time.Time
	// size is what is held for the row.
	size int
}

// tables keeps rows. They are not forms of their entries, for a form never changes,
// and a row does as its object grows older.
type tables struct {
	mu sync.Mutex
	// young are the rows that were used since old was young, all guarded by mu.
	young, old map[rowKey]row
	bytes      int // of young

	// unordered: the printer of this kind does not print its objects in turn.
	unordered atomic.Bool
}

const (
	// maxRowBytes bounds what each of the two generations holds.
	maxRowBytes = 4 << 20
	rowOverhead = 160
)

// get returns a row that is what it would be now, nil if there is none.
func (t *tables) get(key rowKey, now time.Time) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.young[key]
	if !ok {
		if found, ok = t.old[key]; ok && now.Before(found.until) {
			t.keepLocked(key, found)
		}
	}
	if !ok || !now.Before(found.until) {
		return nil
	}
	return found.data
}

// put keeps a row, and with it so many bytes of its entry that may be held for nothing
// else.
func (t *tables) put(key rowKey, data []byte, more int, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keepLocked(key, row{data, until, len(data) + more + rowOverhead})
}

func (t *tables) keepLocked(key rowKey, r row) {
	if before, ok := t.young[key]; ok {
		t.bytes -= before.size
	}
	if t.young == nil || t.bytes > maxRowBytes {
		t.old, t.young, t.bytes = t.young, map[rowKey]row{}, 0
	}
	t.young[key] = r
	t.bytes += r.size
}
