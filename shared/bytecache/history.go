package bytecache

import (
	"context"
	"errors"

	"triune.dev/shared/etcdstore/kv"
)

const (
	// historyBytes and historyEvents bound what is read of history at once. What
	// lies between a cursor and the log, and fits, is put into the log for all who
	// come with about the same revision; the rest is read by each one for itself.
	historyBytes  = 4 << 20
	historyEvents = 4096
)

// errEnough ends a read of history.
var errEnough = errors.New("enough history")

// fromHistory reads what the log has forgotten, up to the log's floor. It returns
// nothing where there is nothing, or the log is another one by now.
func (cur *Cursor) fromHistory(ctx context.Context) (Changes, error) {
	c := cur.cache
	select {
	case c.historyTurn <- struct{}{}:
		defer func() { <-c.historyTurn }()
	case <-ctx.Done():
		return Changes{}, ctx.Err()
	}
	c.mu.Lock()
	floor, section := c.log.floor, c.log.section
	outdated := c.era != cur.era || c.phase != live || cur.revision >= floor
	c.mu.Unlock()
	if outdated {
		return Changes{}, nil // another one has read it, or there was a reset
	}
	var list []*Change
	var size int64
	err := c.space.config.Feed.Since(ctx, c.prefix, cur.revision, floor, func(e kv.Event) error {
		full := size > c.space.historyBytes || len(list) >= c.space.historyEvents
		if full && e.Revision != list[len(list)-1].Revision {
			return errEnough
		}
		change := c.historic(ctx, e)
		size += change.size()
		list = append(list, change)
		return nil
	})
	enough := errors.Is(err, errEnough)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.era != cur.era:
		return Changes{}, nil // what was read may be of a history that is no more
	case enough:
		cur.revision = list[len(list)-1].Revision
	case err != nil:
		return Changes{}, expired(err, cur.revision, floor)
	default:
		if c.log.section == section && c.log.floor == floor && c.log.prepend(list, cur.revision) {
			for _, change := range list {
				c.adoptEntryLocked(change.Before)
				c.adoptEntryLocked(change.Now)
			}
		}
		cur.revision = floor
	}
	return Changes{List: list, Revision: cur.revision}, nil
}

// historic makes the change of an event that is older than the log. Only the event
// itself knows the state before it.
func (c *Cache) historic(ctx context.Context, e kv.Event) *Change {
	change := &Change{Kind: e.Kind, Key: e.Key, Revision: e.Revision, historic: true}
	if e.Kind != kv.Deleted {
		change.Now = c.entry(ctx, e.Key, e.Value, e.Revision)
	}
	if e.Kind != kv.Created {
		change.Before = c.entry(ctx, e.Key, e.Previous, 0)
	}
	return change
}
