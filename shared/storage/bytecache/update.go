package bytecache

import (
	"bytes"
	"context"
	"strings"
	"time"

	"triune.dev/shared/storage/kv"
)

// receive takes events of complete revisions up to revision. The space calls it with its
// lock held, and fires the returned wakeups.
func (c *Cache) receive(events []kv.Event, revision int64) []*wakeup {
	if c.options.SlowDecrypt {
		return c.enqueue(events)
	}
	return c.applyPrepared(c.prepare(context.Background(), events, borrowed), revision)
}

// applyPrepared applies prepared changes of complete revisions up to revision. It returns
// the wakeups to fire.
func (c *Cache) applyPrepared(changes []*Change, revision int64) []*wakeup {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applyLocked(changes, revision)
}

func (c *Cache) applyLocked(changes []*Change, revision int64) []*wakeup {
	switch c.phase {
	case loading:
		c.pending = append(c.pending, changes...)
	case live:
		followed, ok := c.updateLocked(changes)
		if ok {
			return c.takeWakeupsLocked(followed)
		}
		return c.resetLocked(revision, false)
	}
	return nil
}

// ownership says who owns the bytes of events.
type ownership bool

const (
	// borrowed events are parts of the event log's buffers and must be copied to be
	// retained.
	borrowed ownership = false
	// owned events may be retained.
	owned ownership = true
)

// prepare does the work that needs no lock: it copies and decrypts, and computes the
// attributes that the indexes need.
func (c *Cache) prepare(ctx context.Context, events []kv.Event, from ownership) []*Change {
	c.mu.Lock()
	// An idle cache gets these changes by its next load.
	unwanted := c.phase == idle
	labels, fields := false, len(c.wakeups.fieldCount) > 0
	for _, ix := range c.indexes {
		labels, fields = labels || !ix.field, fields || ix.field
	}
	var before []*Entry
	if len(c.wakeups.fieldCount) > 0 {
		before = c.knownLocked(events)
	}
	c.mu.Unlock()
	for _, e := range before {
		_, _ = c.FieldsOf(e)
	}
	if unwanted {
		return nil
	}
	changes := make([]*Change, len(events))
	for i, e := range events {
		if from == borrowed {
			e = copied(e)
		}
		change := &Change{Kind: e.Kind, Key: e.Key, Revision: e.Revision}
		changes[i] = change
		if e.Kind == kv.Deleted {
			continue
		}
		change.Now = c.entry(ctx, e.Key, e.Value, e.Revision)
		if labels {
			_, _ = c.LabelsOf(change.Now) // the next call returns the error again
		}
		if fields {
			_, _ = c.FieldsOf(change.Now)
		}
	}
	return changes
}

// copied copies the parts of a borrowed event that the cache retains. A modified object
// already has its own copy of the key.
func copied(e kv.Event) kv.Event {
	if e.Kind == kv.Created {
		e.Key = strings.Clone(e.Key)
	}
	e.Value = bytes.Clone(e.Value)
	return e
}

// knownLocked returns the current entries of the objects that events change.
func (c *Cache) knownLocked(events []kv.Event) (known []*Entry) {
	for _, e := range events {
		if entry := c.getLocked(e.Key); entry != nil {
			known = append(known, entry)
		}
	}
	return known
}

// updateLocked applies the changes that are newer than the tree, and returns them. ok is
// false if a change contradicts the tree.
func (c *Cache) updateLocked(changes []*Change) (followed []*Change, ok bool) {
	for len(changes) > 0 && changes[0].Revision <= c.changed {
		changes = changes[1:] // included in the load
	}
	if len(changes) == 0 {
		return nil, true
	}
	c.retireSnapshotLocked(changes[0].Revision)
	for _, change := range changes {
		if change.Kind == kv.Deleted {
			c.pivot.Key = change.Key
			change.Before, _ = c.tree.Delete(&c.pivot)
		} else {
			change.Before, _ = c.tree.Set(change.Now)
		}
		if (change.Before == nil) != (change.Kind == kv.Created) {
			if c.options.OnInconsistent != nil {
				c.options.OnInconsistent(change.Key, change.Revision)
			}
			return nil, false
		}
		if change.Before != nil {
			c.treeBytes -= change.Before.size()
			c.pinned.replace(change.Before.size())
			// Both keys are equal: retain one string.
			change.Key = change.Before.Key
		}
		if change.Now != nil {
			change.Now.Key = change.Key
			c.treeBytes += change.Now.size()
			c.trackEntryLocked(change.Now)
		}
		c.updateIndexesLocked(change)
	}
	c.changed = changes[len(changes)-1].Revision
	c.changes += int64(len(changes))
	c.log.append(time.Now(), changes...)
	if c.space.plain.Load() > c.space.trigger.Load() {
		c.space.wakeCompressor()
	}
	return changes, true
}

// dropChangeLocked is called for a change that the log drops: only the log retained the
// state before it.
func (c *Cache) dropChangeLocked(change *Change) {
	c.untrackEntryLocked(change.Before)
}

// entry returns the entry of a stored value, which it retains.
func (c *Cache) entry(ctx context.Context, key string, stored []byte, revision int64) *Entry {
	e := &Entry{Key: key, Revision: revision}
	data := stored
	if c.options.Decrypt != nil {
		data, e.Stale, e.Err = c.options.Decrypt(ctx, key, stored)
	}
	if e.Err != nil {
		e.Err = &decryptError{e.Err, stored}
	}
	e.hold(data)
	if c.options.LabelFilter != nil && e.Err == nil {
		if filter, ok := c.options.LabelFilter(data); ok {
			e.absent = ^filter
		}
	}
	return e
}

// reset is called by the space when its log has a gap. It returns the wakeups, which must
// be fired without a lock.
func (c *Cache) reset(revision int64, replaced bool) []*wakeup {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resetLocked(revision, replaced)
}

// resetLocked discards everything; changes between the last one and revision are unknown.
// replaced says that etcd was replaced, so that no cursor may continue. It returns the
// wakeups to fire, those of all sleeping cursors.
func (c *Cache) resetLocked(revision int64, replaced bool) []*wakeup {
	if replaced {
		c.incarnation++
	}
	c.resetRevision, c.resetEpoch = revision, c.epoch+1
	return c.clearLocked()
}

// clearLocked discards everything; the next caller that needs the cache loads it again. It
// returns the wakeups to fire.
func (c *Cache) clearLocked() []*wakeup {
	// Sleeping cursors have missed nothing so far.
	taken := c.wakeups.takeAll(nil, "", logPosition{c.revisionLocked(), c.log.end, c.log.section})
	c.epoch++
	c.phase = idle
	c.pending = nil
	c.queue.clear()
	c.space.windows.dropCache(c)
	c.tree, c.treeBytes = newTree(), 0
	c.pivot.Key = ""
	c.snapshot = nil
	c.pinned.reset()
	c.indexes, c.askedOnce = nil, nil
	c.changed = 0
	c.log.reset(c.resetRevision)
	c.countPlainLocked(-c.plain)
	c.dictionary, c.position = nil, position{}
	return taken
}
