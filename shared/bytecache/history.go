package bytecache

import (
	"context"
	"errors"

	"triune.dev/shared/etcdstore/kv"
)

const (
	// historyBytes and historyEvents bound what is read of history at once.
	historyBytes  = 4 << 20
	historyEvents = 4096
)

// errEnough ends a read of history.
var errEnough = errors.New("enough history")

// fromHistory returns what the log has forgotten, up to the log's floor at most. It
// returns nothing where there is nothing, or the log is another one by now. One cursor
// at a time reads; the others then find what it has read.
func (cur *Cursor) fromHistory(ctx context.Context) (Changes, error) {
	c := cur.cache
	if w, _ := c.space.windows.at(c, cur.revision); w != nil {
		return cur.readWindow(w), nil
	}
	select {
	case c.historyTurn <- struct{}{}:
		defer func() { <-c.historyTurn }()
	case <-ctx.Done():
		return Changes{}, ctx.Err()
	}
	found, next := c.space.windows.at(c, cur.revision)
	if found != nil {
		return cur.readWindow(found), nil
	}
	c.mu.Lock()
	floor := c.log.floor
	outdated := c.era != cur.era || c.phase != live || cur.revision >= floor
	c.mu.Unlock()
	if outdated {
		return Changes{}, nil // there was a reset
	}
	if next == 0 || next > floor {
		next = floor
	}
	w := &window{cache: c, after: cur.revision, upTo: next, size: windowOverhead}
	err := c.space.config.Feed.Since(ctx, c.prefix, w.after, w.upTo, func(e kv.Event) error {
		full := w.size > c.space.historyBytes || len(w.changes) >= c.space.historyEvents
		if full && e.Revision != w.changes[len(w.changes)-1].Revision {
			return errEnough
		}
		change := c.historic(ctx, e)
		w.size += change.size()
		if change.Now != nil {
			w.size += change.Now.size()
		}
		w.changes = append(w.changes, change)
		return nil
	})
	if errors.Is(err, errEnough) {
		w.upTo, err = w.changes[len(w.changes)-1].Revision, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.era != cur.era:
		return Changes{}, nil // what was read may be of a history that is no more
	case err != nil:
		return Changes{}, expired(err, cur.revision, floor)
	}
	c.space.windows.add(w)
	return cur.readWindow(w), nil
}

// windowOverhead is what a window holds of memory beside its changes.
const windowOverhead = 128

func (cur *Cursor) readWindow(w *window) Changes {
	list := w.since(cur.revision)
	cur.revision = w.upTo
	return Changes{List: list, Revision: cur.revision}
}

// historic makes the change of an event that is older than the log, and shares nothing
// with the tree. Only the event itself knows the state before it.
func (c *Cache) historic(ctx context.Context, e kv.Event) *Change {
	change := &Change{Kind: e.Kind, Key: e.Key, Revision: e.Revision}
	if e.Kind != kv.Deleted {
		change.Now = c.entry(ctx, e.Key, e.Value, e.Revision)
	}
	if e.Kind != kv.Created {
		change.Before = c.entry(ctx, e.Key, e.Previous, 0)
	}
	return change
}
