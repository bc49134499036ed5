package bytecache

import (
	"context"
	"errors"

	"triune.dev/shared/storage/kv"
)

const (
	// historyBytes and historyEvents bound one read of history.
	historyBytes  = 4 << 20
	historyEvents = 4096
)

// errPageFull ends a read of history.
var errPageFull = errors.New("enough history")

// readHistory returns changes that the log has dropped, at most up to the floor of the log.
// It returns no changes if there are none, or if the log was reset meanwhile. One cursor at
// a time reads; the others then find its window.
func (cur *Cursor) readHistory(ctx context.Context) (Changes, error) {
	c := cur.cache
	if w, _ := c.space.windows.find(c, cur.revision); w != nil {
		return cur.readWindow(w), nil
	}
	select {
	case c.historySem <- struct{}{}:
		defer func() { <-c.historySem }()
	case <-ctx.Done():
		return Changes{}, ctx.Err()
	}
	found, next := c.space.windows.find(c, cur.revision)
	if found != nil {
		return cur.readWindow(found), nil
	}
	c.mu.Lock()
	floor := c.log.floor
	outdated := c.epoch != cur.epoch || c.phase != live || cur.revision >= floor
	c.mu.Unlock()
	if outdated {
		return Changes{}, nil // reset meanwhile
	}
	if next == 0 || next > floor {
		next = floor
	}
	w := &window{cache: c, after: cur.revision, upTo: next, size: windowOverhead}
	err := c.space.config.Feed.Since(ctx, c.prefix, w.after, w.upTo, func(e kv.Event) error {
		full := w.size > c.space.historyBytes || len(w.changes) >= c.space.historyEvents
		if full && e.Revision != w.changes[len(w.changes)-1].Revision {
			return errPageFull
		}
		change := c.historicChange(ctx, e)
		w.size += change.size()
		if change.Now != nil {
			w.size += change.Now.size()
		}
		w.changes = append(w.changes, change)
		return nil
	})
	if errors.Is(err, errPageFull) {
		w.upTo, err = w.changes[len(w.changes)-1].Revision, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.epoch != cur.epoch:
		return Changes{}, nil // the history may be that of a replaced etcd
	case err != nil:
		return Changes{}, expired(err, cur.revision, floor)
	}
	c.space.windows.add(w)
	return cur.readWindow(w), nil
}

// windowOverhead is the memory of a window, in bytes, beside its changes.
const windowOverhead = 128

func (cur *Cursor) readWindow(w *window) Changes {
	list := w.since(cur.revision)
	cur.revision = w.upTo
	return Changes{List: list, Revision: cur.revision}
}

// historicChange returns the change of an event from history. It shares nothing with the
// tree, since only the event has the state before it.
func (c *Cache) historicChange(ctx context.Context, e kv.Event) *Change {
	change := &Change{Kind: e.Kind, Key: e.Key, Revision: e.Revision}
	if e.Kind != kv.Deleted {
		change.Now = c.entry(ctx, e.Key, e.Value, e.Revision)
	}
	if e.Kind != kv.Created {
		change.Before = c.entry(ctx, e.Key, e.Previous, 0)
	}
	return change
}
