package bytecache

import (
	"context"
	"strings"

	"github.com/tidwall/btree"
)

// Snapshot is a resource at one revision. It never changes and needs no closing;
// it is safe for concurrent use.
type Snapshot struct {
	tree *btree.BTreeG[*Entry]
	// Revision is the one it is true at.
	Revision int64
	// changed is the revision of the last change in it.
	changed int64
	// era is the cache's when it was taken.
	era int32
	// History counts how often the etcd behind it was replaced by another one, where the
	// same key may mean something else at the same revision.
	History int
}

// Len returns the number of all objects.
func (s *Snapshot) Len() int { return s.tree.Len() }

// Get returns the entry of a key, nil if there is none.
func (s *Snapshot) Get(key string) *Entry {
	entry, _ := s.tree.Get(&Entry{Key: key})
	return entry
}

// Ascend calls yield for the entries from the key from on, in the order of keys,
// until it returns false.
func (s *Snapshot) Ascend(from string, yield func(*Entry) bool) {
	s.tree.Ascend(&Entry{Key: from}, yield)
}

// CountFrom counts the keys that begin with prefix, from the key from on.
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

// Snapshot returns the state of now. It loads the cache first if need be.
func (c *Cache) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := c.lockLive(ctx); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	return c.snapshotLocked(), nil
}

// snapshotLocked copies the tree, which is shared until one of the two changes; a
// second call before the next change shares that copy.
func (c *Cache) snapshotLocked() *Snapshot {
	revision := c.revisionLocked()
	switch {
	case c.snapshot == nil:
		c.snapshot = &Snapshot{tree: c.tree.Copy(), Revision: revision, changed: c.changed, era: c.era, History: c.history}
	case c.snapshot.Revision != revision:
		c.snapshot = &Snapshot{tree: c.snapshot.tree, Revision: revision, changed: c.changed, era: c.era, History: c.history}
	}
	return c.snapshot
}

// SnapshotAt returns the state at a revision that has been, if it is still known.
// It does not load.
func (c *Cache) SnapshotAt(revision int64) (*Snapshot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live || revision > c.revisionLocked() {
		return nil, false
	}
	if revision >= c.changed {
		return &Snapshot{tree: c.snapshotLocked().tree, Revision: revision, changed: c.changed, era: c.era, History: c.history}, true
	}
	kept, ok := c.kept.at(revision)
	if !ok {
		return nil, false
	}
	return &Snapshot{tree: kept.tree, Revision: revision, changed: kept.from, era: c.era, History: c.history}, true
}

// Keep remembers the state that a snapshot shows, for the pages that follow.
func (c *Cache) Keep(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live || c.era != s.era {
		return
	}
	if c.changed == s.changed {
		// Still the newest: it is put among the kept ones when a change comes.
		c.snapshotLocked()
		c.kept.wanted = s.changed
		return
	}
	if _, ok := c.kept.at(s.changed); ok || s.changed < c.log.floor {
		return
	}
	// Changes came meanwhile; the log knows which, unless it forgot.
	next, replaced := int64(0), int64(0)
	for number := c.log.after(s.changed); number < c.log.end; {
		later, _ := c.log.from(number)
		number += int64(len(later))
		if next == 0 {
			next = later[0].Revision
		}
		for _, change := range later {
			if change.Before != nil {
				replaced += change.Before.size() + nodeOverhead
			}
		}
	}
	c.kept.add(keptSnapshot{tree: s.tree, from: s.changed, until: next, base: c.kept.replaced - replaced})
}

// retireSnapshotLocked is called before the tree changes to what it is at revision.
func (c *Cache) retireSnapshotLocked(revision int64) {
	if c.snapshot != nil && c.kept.wanted == c.changed {
		c.kept.add(keptSnapshot{tree: c.snapshot.tree, from: c.changed, until: revision, base: c.kept.replaced})
	}
	c.snapshot = nil
	c.kept.wanted = 0
}
