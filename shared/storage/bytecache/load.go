package bytecache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/storage/kv"
)

// loadPage is the number of keys in one request of a load.
const loadPage = 500

// loadLimit bounds one load. Callers have deadlines of their own; this one releases loadSem
// if etcd does not answer.
const loadLimit = 2 * time.Minute

// loadProgress counts the objects of a load that were read, and those there are; both are zero
// while there is no load. It is safe for concurrent use.
type loadProgress struct{ read, total atomic.Int64 }

func (p *loadProgress) set(read, total int64) {
	p.read.Store(read)
	p.total.Store(total)
}

// Load reads the resource from etcd, unless the cache is live. Concurrent callers wait for
// the same load. The load continues when the caller that began it gives up; otherwise
// impatient clients would restart the load of a large resource again and again. Load fails
// with the error of etcd or of ctx, and the next call tries again.
func (c *Cache) Load(ctx context.Context) error {
	for {
		if c.isLive() {
			return nil
		}
		select {
		case c.loadSem <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("load %s: %w", c.prefix, ctx.Err())
		}
		if c.isLive() {
			<-c.loadSem
			return nil
		}
		loaded := make(chan error, 1)
		go func() {
			defer func() { <-c.loadSem }()
			lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
			defer cancel()
			err := c.load(lasting)
			c.space.trimLogs() // of the changes received meanwhile
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

// load implements load-then-follow. Once the phase is loading, the cache collects every
// event of the log. Earlier events are included in the read, because the first page is read
// linearizably and so its revision R is not before the revision of the log. Changes at or
// before R are dropped, changes after R are applied.
func (c *Cache) load(ctx context.Context) error {
	if err := c.space.awaitStart(ctx); err != nil {
		return fmt.Errorf("load %s: %w", c.prefix, err)
	}
	epoch, known := c.beginLoad()
	loaded, err := c.read(ctx, known, epoch)
	var indexes []*index
	for _, building := range loaded.indexes {
		indexes = append(indexes, building.done())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch != epoch {
		return nil // reset meanwhile; the caller tries again
	}
	pending := c.pending
	c.pending = nil
	if errors.Is(err, rpctypes.ErrCompacted) {
		// etcd was compacted during the load; the caller tries again.
		c.phase = idle
		return nil
	}
	if err != nil {
		c.phase = idle
		return fmt.Errorf("load %s: %w", c.prefix, err)
	}
	c.phase = live
	c.loads++
	c.tree, c.treeBytes, c.changed = loaded.tree, loaded.treeBytes, loaded.revision
	c.snapshot = nil
	c.indexes = indexes
	c.log.reset(loaded.revision)
	c.addPlainLocked(loaded.plain)
	c.dictionary = loaded.dictionary
	if _, ok := c.updateLocked(pending); !ok {
		c.resetLocked(c.revisionLocked(), false)
	}
	return nil
}

// beginLoad returns the epoch, and the revision after which changes are collected. The
// space's lock keeps a batch from being split by it.
func (c *Cache) beginLoad() (epoch int32, known int64) {
	c.space.mu.Lock()
	defer c.space.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = loading
	c.pending = nil
	return c.epoch, c.space.revision.Load()
}

// loaded is the result of a read.
type loaded struct {
	tree      *btree.BTreeG[*Entry]
	treeBytes int64
	revision  int64
	// indexes are those in Options.Indexes.
	indexes []*indexBuilder
	// plain and dictionary become the fields of Cache.
	plain      int64
	dictionary *dictionary
}

// read reads all keys. Entries that exceed PlainBytes are compressed at once, so that a
// large resource is never in memory twice. The entries get the epoch in which the read
// began.
func (c *Cache) read(ctx context.Context, known int64, epoch int32) (loaded, error) {
	out := loaded{tree: newTree()}
	for _, t := range c.options.Indexes {
		out.indexes = append(out.indexes, newIndexBuilder(t))
	}
	defer func() {
		c.progress.set(0, 0)
		if out.dictionary != nil {
			out.dictionary.release()
			c.space.wakeCompressor() // to return the garbage of this load
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
				// etcd was replaced by an older copy, and a reset will follow.
				return out, fmt.Errorf("etcd is at revision %d, behind the event log at %d", page.Revision, known)
			}
			out.revision = page.Revision
		}
		total := int64(out.tree.Len()) + page.Count
		for _, item := range page.KVs {
			e := c.entry(ctx, string(item.Key), item.Value, item.ModRevision)
			e.epoch = epoch + 1
			for _, building := range out.indexes {
				building.add(c, e)
			}
			if err := out.compress(c, e); err != nil {
				return out, err
			}
			out.tree.Load(e)
			out.treeBytes += e.size()
		}
		c.progress.set(int64(out.tree.Len()), total)
		if !page.More() || len(page.KVs) == 0 {
			return out, nil
		}
		r.Start = string(page.KVs[len(page.KVs)-1].Key) + "\x00"
		r.Revision = out.revision
	}
}

// compress compresses an entry that is not shared yet, if there is no room for its plain
// bytes.
func (l *loaded) compress(c *Cache, e *Entry) error {
	if !e.compressibleLocked() {
		return nil
	}
	if !c.space.compresses() || c.space.plain.Load()+l.plain+int64(e.length) <= c.space.config.PlainBytes {
		l.plain += int64(e.length)
		return nil
	}
	if l.dictionary == nil {
		var err error
		if l.dictionary, err = newDictionary(c, []*Entry{e}); err != nil {
			return err
		}
	}
	result, err := l.dictionary.compress(e.Plain())
	if err != nil {
		return err
	}
	if result == nil {
		e.incompressible = true
		return nil
	}
	e.compressed.Store(result)
	e.plain.Store(nil)
	e.recentlyRead.Store(0)
	c.space.garbageLeft.Store(true)
	return nil
}
