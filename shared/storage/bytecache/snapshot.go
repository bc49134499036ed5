package bytecache

import (
	"context"
	"strings"

	"github.com/tidwall/btree"
)

// Snapshot is a resource at one revision. It never changes and needs no closing. It is safe
// for concurrent use.
type Snapshot struct {
	tree *btree.BTreeG[*Entry]
	// Revision is the revision of the state.
	Revision int64
	// changed is the revision of the last change before it.
	changed int64
	// epoch is the cache's epoch at the time of the snapshot.
	epoch int32
	// Incarnation counts the replacements of etcd. The same key may have another meaning at
	// the same revision of another incarnation.
	Incarnation int
}

// Len returns the number of objects.
func (s *Snapshot) Len() int { return s.tree.Len() }

// Get returns the entry of a key, nil if there is none.
func (s *Snapshot) Get(key string) *Entry {
	entry, _ := s.tree.Get(&Entry{Key: key})
	return entry
}

// Ascend calls yield for the entries whose keys are at or after from, in the order of keys,
// until yield returns false.
func (s *Snapshot) Ascend(from string, yield func(*Entry) bool) {
	s.tree.Ascend(&Entry{Key: from}, yield)
}

// CountFrom returns the number of keys with the prefix that are at or after from.
func (s *Snapshot) CountFrom(prefix, from string) int64 {
	var count int64
	s.Ascend(max(prefix, from), func(e *Entry) bool {
		if !strings.HasPrefix(e.Key, prefix) {
			return false
		}
		count++
		return true
	})
	return count
}

// Snapshot returns the current state. It loads the cache first if necessary.
func (c *Cache) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := c.lockLive(ctx); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	return c.snapshotLocked(), nil
}

// snapshotLocked copies the tree, which is shared until one of the copies changes. Calls
// between two changes share one copy.
func (c *Cache) snapshotLocked() *Snapshot {
	revision := c.revisionLocked()
	switch {
	case c.snapshot == nil:
		c.snapshot = &Snapshot{tree: c.tree.Copy(), Revision: revision, changed: c.changed, epoch: c.epoch, Incarnation: c.incarnation}
	case c.snapshot.Revision != revision:
		c.snapshot = &Snapshot{tree: c.snapshot.tree, Revision: revision, changed: c.changed, epoch: c.epoch, Incarnation: c.incarnation}
	}
	return c.snapshot
}

// SnapshotAt returns the state at a past revision, if it is the newest state or pinned. It
// does not load the cache.
func (c *Cache) SnapshotAt(revision int64) (*Snapshot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live || revision > c.revisionLocked() {
		return nil, false
	}
	if revision >= c.changed {
		return &Snapshot{tree: c.snapshotLocked().tree, Revision: revision, changed: c.changed, epoch: c.epoch, Incarnation: c.incarnation}, true
	}
	pinned, ok := c.pinned.find(revision)
	if !ok {
		return nil, false
	}
	return &Snapshot{tree: pinned.tree, Revision: revision, changed: pinned.from, epoch: c.epoch, Incarnation: c.incarnation}, true
}

// Pin retains the state of a snapshot for the next pages of a LIST.
func (c *Cache) Pin(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live || c.epoch != s.epoch {
		return
	}
	if c.changed == s.changed {
		// The state is still the newest. The next change moves it to the pinned snapshots.
		c.snapshotLocked()
		c.pinned.newestPin = s.changed
		return
	}
	if _, ok := c.pinned.find(s.changed); ok || s.changed < c.log.floor {
		return
	}
	// The log has the changes since then.
	next, replaced := int64(0), int64(0)
	for number := c.log.after(s.changed); number < c.log.end; {
		later, _ := c.log.from(number)
		number += int64(len(later))
		if next == 0 {
			next = later[0].Revision
		}
		for _, change := range later {
			if change.Before != nil {
				replaced += change.Before.size() + treeNodeOverhead
			}
		}
	}
	c.pinned.add(pinnedSnapshot{tree: s.tree, from: s.changed, until: next, base: c.pinned.replaced - replaced})
}

// retireSnapshotLocked is called before the tree changes to its state at revision.
func (c *Cache) retireSnapshotLocked(revision int64) {
	if c.snapshot != nil && c.pinned.newestPin == c.changed {
		c.pinned.add(pinnedSnapshot{tree: c.snapshot.tree, from: c.changed, until: revision, base: c.pinned.replaced})
	}
	c.snapshot = nil
	c.pinned.newestPin = 0
}
