package reads

import (
	"sync"
	"sync/atomic"
	"time"

	"triune.dev/shared/storage/bytecache"
)

// rowKey identifies the row of an object at a revision, which differs from the entry's for
// the event of a deletion.
type rowKey struct {
	entry    *bytecache.Entry
	revision int64
	style    tableStyle
}

// newRowKey returns the key of a row. The row is the same with and without headers.
func newRowKey(e *bytecache.Entry, revision int64, s tableStyle) rowKey {
	s.noHeaders = false
	return rowKey{e, revision, s}
}

// row is an encoded row.
type row struct {
	data []byte
	// expires is the time from which on the row would be encoded differently.
	expires time.Time
	// size is the memory retained by the row.
	size int
}

// rowCache caches rows in two generations. Rows are not forms of their entries, because a
// form never changes and a row does as its object ages.
type rowCache struct {
	mu sync.Mutex
	// young are the rows used since the last change of generations. Guarded by mu, as are
	// the other fields up to bytes.
	young, old map[rowKey]row
	bytes      int // of young

	// unordered reports that the printer of this kind does not print objects in order.
	unordered atomic.Bool
}

const (
	// maxRowBytes bounds each generation.
	maxRowBytes = 4 << 20
	rowOverhead = 160
)

// get returns a row that is still valid, nil if there is none.
func (t *rowCache) get(key rowKey, now time.Time) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.young[key]
	if !ok {
		if found, ok = t.old[key]; ok && now.Before(found.expires) {
			t.addLocked(key, found)
		}
	}
	if !ok || !now.Before(found.expires) {
		return nil
	}
	return found.data
}

// put caches a row. more is the size of its entry if only the row may retain that.
func (t *rowCache) put(key rowKey, data []byte, more int, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(key, row{data, until, len(data) + more + rowOverhead})
}

func (t *rowCache) addLocked(key rowKey, r row) {
	if before, ok := t.young[key]; ok {
		t.bytes -= before.size
	}
	if t.young == nil || t.bytes > maxRowBytes {
		t.old, t.young, t.bytes = t.young, map[rowKey]row{}, 0
	}
	t.young[key] = r
	t.bytes += r.size
}
