package bytecache

import (
	"slices"
	"sort"
	"sync"
)

// window is a part of the history of one cache: all changes after one revision and up to
// another. It never changes.
type window struct {
	cache       *Cache
	after, upTo int64
	changes     []*Change
	size        int64
}

// since returns the changes of the window after a revision.
func (w *window) since(revision int64) []*Change {
	at := sort.Search(len(w.changes), func(i int) bool { return w.changes[i].Revision > revision })
	return w.changes[at:len(w.changes):len(w.changes)]
}

// windows caches the recently read history of all caches of a space. When a server is
// killed, its clients resume at about the same revision; they then share one read of
// history, and the frames rendered for its changes.
type windows struct {
	limit int64

	mu sync.Mutex
	// byCache has the windows of each cache in order, without overlaps. Guarded by mu, as
	// are all fields below.
	byCache map[*Cache][]*window
	// lru lists all windows, the most recently used one last.
	lru   []*window
	bytes int64
}

// find returns the window that has the changes after a revision. If there is none, next is
// the revision at which a later window begins, or 0.
func (ws *windows) find(c *Cache, revision int64) (found *window, next int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	all := ws.byCache[c]
	i := sort.Search(len(all), func(i int) bool { return all[i].upTo > revision })
	switch {
	case i == len(all):
		return nil, 0
	case all[i].after > revision:
		return nil, all[i].after
	}
	found = all[i]
	last := len(ws.lru) - 1
	if at := slices.Index(ws.lru, found); at != last {
		copy(ws.lru[at:], ws.lru[at+1:])
		ws.lru[last] = found
	}
	return found, 0
}

// add caches a window, and evicts the least recently used ones beyond the limit.
func (ws *windows) add(w *window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	all := ws.byCache[w.cache]
	i := sort.Search(len(all), func(i int) bool { return all[i].upTo > w.after })
	if i < len(all) && all[i].after < w.upTo {
		return // another cursor has read it, too
	}
	if ws.byCache == nil {
		ws.byCache = map[*Cache][]*window{}
	}
	ws.byCache[w.cache] = slices.Insert(all, i, w)
	ws.lru = append(ws.lru, w)
	ws.bytes += w.size
	for ws.bytes > ws.limit {
		oldest := ws.lru[0]
		ws.lru = slices.Delete(ws.lru, 0, 1)
		ws.removeLocked(oldest)
	}
}

func (ws *windows) removeLocked(w *window) {
	ws.bytes -= w.size
	remaining := slices.DeleteFunc(ws.byCache[w.cache], func(other *window) bool { return other == w })
	if len(remaining) == 0 {
		delete(ws.byCache, w.cache)
		return
	}
	ws.byCache[w.cache] = remaining
}

// dropCache drops the windows of a cache after a reset.
func (ws *windows) dropCache(c *Cache) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.byCache[c]) == 0 {
		return
	}
	ws.lru = slices.DeleteFunc(ws.lru, func(w *window) bool { return w.cache == c })
	for _, w := range slices.Clone(ws.byCache[c]) {
		ws.removeLocked(w)
	}
}
