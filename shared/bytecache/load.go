package bytecache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidwall/btree"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/etcdstore/kv"
)

// loadPage is how many keys a load reads at once.
const loadPage = 500

// loadLimit bounds one attempt to load. Who waits has a deadline of his own; this one
// frees the turn when etcd does not answer and nobody waits any more.
const loadLimit = 2 * time.Minute

// Load reads the resource from etcd, unless that is done. Whoever comes meanwhile
// waits for it. A load goes on when the one who began it gives up: clients with little
// patience would else begin a large resource again and again. It fails with etcd's
// error or, for the one it belongs to, the context's; the next call tries again.
func (c *Cache) Load(ctx context.Context) error {
	for {
		if c.isLive() {
			return nil
		}
		select {
		case c.loadTurn <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("load %s: %w", c.prefix, ctx.Err())
		}
		if c.isLive() {
			<-c.loadTurn
			return nil
		}
		loaded := make(chan error, 1)
		go func() {
			defer func() { <-c.loadTurn }()
			lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
			defer cancel()
			err := c.load(lasting)
			c.space.trimLogs() // of what came meanwhile
			loaded <- err
		}()
		select {
		case err := <-loaded:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("load %s: %w", c.prefix, ctx.Err())
		}
	}
}

func (c *Cache) isLive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase == live
}

// load is load-then-follow. From the moment the cache is loading no event of the
// log is lost to it, and what the log said before is in what is read: the first
// page is read linearizably, so its revision R is not before the log's. What comes
// at or before R is dropped, what comes after R is applied.
func (c *Cache) load(ctx context.Context) error {
	if err := c.space.awaitStart(ctx); err != nil {
		return fmt.Errorf("load %s: %w", c.prefix, err)
	}
	era, known := c.beginLoad()
	loaded, err := c.read(ctx, known, era)
	var indexes []*index
	for _, building := range loaded.indexes {
		indexes = append(indexes, building.done())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.era != era {
		return nil // a reset came between; the caller tries again
	}
	aside := c.aside
	c.aside = nil
	if errors.Is(err, rpctypes.ErrCompacted) {
		// It took longer than etcd remembers: the caller begins anew.
		c.phase = idle
		return nil
	}
	if err != nil {
		c.phase = idle
		return fmt.Errorf("load %s: %w", c.prefix, err)
	}
	c.phase = live
	c.tree, c.stored, c.changed = loaded.tree, loaded.stored, loaded.revision
	c.snapshot = nil
	c.indexes = indexes
	c.log.restart(loaded.revision)
	c.addLocked(loaded.plain)
	c.press = loaded.press
	if _, ok := c.followLocked(aside); !ok {
		c.restartLocked(c.revisionLocked(), false)
	}
	return nil
}

// beginLoad returns the reset count and the revision from which on changes are put
// aside. The space's lock keeps a batch from being half before and half after it.
func (c *Cache) beginLoad() (era int32, known int64) {
	c.space.mu.Lock()
	defer c.space.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = loading
	c.aside = nil
	return c.era, c.space.revision.Load()
}

type loaded struct {
	tree     *btree.BTreeG[*Entry]
	stored   int64
	revision int64
	// indexes are those of Options.
	indexes []*indexing
	// plain and press are what they are in Cache.
	plain int64
	press *press
}

// read reads all keys. The entries are of the era that was when it began; what there
// is no room for is compressed at once, lest a large resource be held twice.
func (c *Cache) read(ctx context.Context, known int64, era int32) (loaded, error) {
	out := loaded{tree: newTree()}
	for _, t := range c.options.Indexes {
		out.indexes = append(out.indexes, newIndexing(t))
	}
	defer func() {
		if out.press != nil {
			out.press.rest()
			c.space.callPacker() // it gives back what this has left
		}
	}()
	r := kv.PrefixRange(c.prefix, "")
	r.Limit = c.space.loadPage
	for {
		page, err := c.space.config.Origin.List(ctx, r)
		if err != nil {
			return out, err
		}
		if out.revision == 0 {
			if page.Revision < known {
				// etcd was replaced by an older one; the log will say so by a reset.
				return out, fmt.Errorf("etcd is at revision %d, behind the event log at %d", page.Revision, known)
			}
			out.revision = page.Revision
		}
		for _, item := range page.KVs {
			e := c.entry(ctx, string(item.Key), item.Value, item.ModRevision)
			e.era = era + 1
			for _, building := range out.indexes {
				building.add(c, e)
			}
			if err := out.pack(c, e); err != nil {
				return out, err
			}
			out.tree.Load(e)
			out.stored += e.size()
		}
		if !page.More() || len(page.KVs) == 0 {
			return out, nil
		}
		r.Start = string(page.KVs[len(page.KVs)-1].Key) + "\x00"
		r.Revision = out.revision
	}
}

// pack compresses an entry that nobody else has seen yet, if there is no room for its
// bytes.
func (l *loaded) pack(c *Cache, e *Entry) error {
	if !e.countedLocked() {
		return nil
	}
	if !c.space.packs() || c.space.plain.Load()+l.plain+int64(e.length) <= c.space.config.PlainBytes {
		l.plain += int64(e.length)
		return nil
	}
	if l.press == nil {
		var err error
		if l.press, err = newPress(c, []*Entry{e}); err != nil {
			return err
		}
	}
	result, err := l.press.pack(e.Plain())
	if err != nil {
		return err
	}
	if result == nil {
		e.solid = true
		return nil
	}
	e.packed.Store(result)
	e.plain.Store(nil)
	e.used.Store(0)
	c.space.left.Store(true)
	return nil
}
