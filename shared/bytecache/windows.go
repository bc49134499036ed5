package bytecache

import (
	"slices"
	"sort"
	"sync"
)

// window is a part of the history of one cache: every change after one revision and up to
// another, which are complete. It never changes.
type window struct {
	cache       *Cache
	after, upTo int64
	changes     []*Change
	size        int64
}

// since returns the changes after a revision in the window.
func (w *window) since(revision int64) []*Change {
	at := sort.Search(len(w.changes), func(i int) bool { return w.changes[i].Revision > revision })
	return w.changes[at:len(w.changes):len(w.changes)]
}

// windows are the parts of history that were read last, for all caches of a space. Who
// resumes at about the same revision as others, as the clients of a server do that was
// killed, reads what they have read, and shares the frames made of it.
type windows struct {
	limit int64

	mu sync.Mutex
	// byCache has the windows of a cache in order; they do not overlap. Guarded by mu, as
	// is all below.
	byCache map[*Cache][]*window
	// used lists all windows, the one used last at the end.
	used  []*window
	bytes int64
}

// at returns the window that has what comes after a revision. Where there is none, it is
// to end at next, if that is not 0, where another one begins.
func (ws *windows) at(c *Cache, revision int64) (found *window, next int64) {
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
	last := len(ws.used) - 1
	if at := slices.Index(ws.used, found); at != last {
		copy(ws.used[at:], ws.used[at+1:])
		ws.used[last] = found
	}
	return found, 0
}

// add remembers a window, and forgets those that were not used for the longest time
// beyond the limit.
func (ws *windows) add(w *window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	all := ws.byCache[w.cache]
	i := sort.Search(len(all), func(i int) bool { return all[i].upTo > w.after })
	if i < len(all) && all[i].after < w.upTo {
		return // others have read the same
	}
	if ws.byCache == nil {
		ws.byCache = map[*Cache][]*window{}
	}
	ws.byCache[w.cache] = slices.Insert(all, i, w)
	ws.used = append(ws.used, w)
	ws.bytes += w.size
	for ws.bytes > ws.limit {
		oldest := ws.used[0]
		ws.used = slices.Delete(ws.used, 0, 1)
		ws.forgetLocked(oldest)
	}
}

func (ws *windows) forgetLocked(w *window) {
	ws.bytes -= w.size
	rest := slices.DeleteFunc(ws.byCache[w.cache], func(other *window) bool { return other == w })
	if len(rest) == 0 {
		delete(ws.byCache, w.cache)
		return
	}
	ws.byCache[w.cache] = rest
}

// drop forgets the windows of a cache, whose history may be another one.
func (ws *windows) drop(c *Cache) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.byCache[c]) == 0 {
		return
	}
	ws.used = slices.DeleteFunc(ws.used, func(w *window) bool { return w.cache == c })
	for _, w := range slices.Clone(ws.byCache[c]) {
		ws.forgetLocked(w)
	}
}
