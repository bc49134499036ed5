package bytecache

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// Term is one term of a selector: a label or field that has one of some values,
// or exists at all. Terms that say "not" have no index.
type Term struct {
	// Field tells a selectable field from a label.
	Field bool
	Key   string
	// Values are the wanted ones; nil means any.
	Values []string
}

func (t *Term) wants(value string) bool { return t.Values == nil || slices.Contains(t.Values, value) }

// Selection is the answer to Select.
type Selection struct {
	// Entries are in the order of their keys.
	Entries  []*Entry
	Revision int64
	// Known is false where an index would not help, because a large part of all
	// objects meets the term, or of some it cannot be found out whether they do: scan a
	// Snapshot instead.
	Known bool
}

// alwaysSelected is the number of entries up to which an index is good enough,
// however large a part of all objects they are.
const alwaysSelected = 64

// copiedSelected is the number of entries beyond which they are collected from a
// copy of the index, without the lock. A copy makes the writes that follow dearer.
const copiedSelected = 256

// Select returns the entries that meet a term, by an index that the first such
// query builds. It loads the cache first if need be.
func (c *Cache) Select(ctx context.Context, t Term) (Selection, error) {
	values := t.Values
	if len(values) > 1 {
		values = slices.Compact(slices.Sorted(slices.Values(values)))
	}
	for {
		if err := c.lockLive(ctx); err != nil {
			return Selection{}, err
		}
		if ix := c.indexLocked(t); ix != nil {
			return c.selectLocked(ix, t, values), nil
		}
		snapshot := c.snapshotLocked()
		c.mu.Unlock()
		ix, err := c.buildIndex(ctx, t, snapshot)
		if err != nil {
			return Selection{}, err
		}
		c.mu.Lock()
		if c.adoptLocked(ix, snapshot) {
			return c.selectLocked(ix, t, values), nil
		}
		c.mu.Unlock()
	}
}

// maxOnce bounds the terms that are remembered because they were asked for once.
const maxOnce = 4 * maxIndexes

// Recurs tells whether it was asked this before of a term for the same label or field, or
// there is an index of it. To look at each object once takes less than to build an index,
// which is worth it the second time.
func (c *Cache) Recurs(t Term) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := func(o Term) bool { return o.Field == t.Field && o.Key == t.Key }
	if c.coveredLocked(t) || slices.ContainsFunc(c.once, same) {
		return true
	}
	if len(c.once) == maxOnce {
		c.once = slices.Delete(c.once, 0, 1)
	}
	c.once = append(c.once, Term{Field: t.Field, Key: strings.Clone(t.Key)}) // of a request that may be much longer
	return false
}

// Indexed tells whether there is an index of the label or field of a term.
func (c *Cache) Indexed(t Term) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.coveredLocked(t)
}

func (c *Cache) coveredLocked(t Term) bool {
	return slices.ContainsFunc(c.indexes, func(ix *index) bool { return ix.covers(t) })
}

// selectLocked reads an index. It unlocks mu, as soon as it has a copy of the index
// where it has to look at more than a few of its entries.
func (c *Cache) selectLocked(ix *index, t Term, values []string) Selection {
	s := Selection{Revision: c.revisionLocked()}
	if ix.unread > 0 {
		c.mu.Unlock()
		return s
	}
	limit := max(alwaysSelected, c.tree.Len()/4)
	if t.Values != nil {
		if entries, ok := collect(ix.tree, values, min(limit, copiedSelected)); ok {
			c.mu.Unlock()
			s.Entries, s.Known = entries, true
			sortByKey(s.Entries, len(values))
			return s
		}
	}
	tree := ix.tree.Copy()
	c.mu.Unlock()
	if t.Values != nil {
		s.Entries, s.Known = collect(tree, values, limit)
	} else if s.Known = tree.Len() <= limit; s.Known {
		s.Entries = make([]*Entry, 0, tree.Len())
		tree.Scan(func(at indexed) bool {
			s.Entries = append(s.Entries, at.entry)
			return true
		})
	}
	sortByKey(s.Entries, 0)
	return s
}

// collect returns the entries that have one of the values; ok is false if they are
// more than the limit.
func collect(tree *btree.BTreeG[indexed], values []string, limit int) (entries []*Entry, ok bool) {
	tooMany := false
	for _, value := range values {
		ofValue(tree, value, func(e *Entry) bool {
			if tooMany = len(entries) == limit; !tooMany {
				entries = append(entries, e)
			}
			return !tooMany
		})
		if tooMany {
			return nil, false
		}
	}
	return entries, true
}

// sortByKey sorts what an index gave for so many values, any number if 0.
func sortByKey(entries []*Entry, values int) {
	if values != 1 {
		slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(a.Key, b.Key) })
	}
}

// indexLocked returns the index for a term, nil if there is none.
func (c *Cache) indexLocked(t Term) *index {
	at := slices.IndexFunc(c.indexes, func(ix *index) bool { return ix.covers(t) })
	if at < 0 {
		return nil
	}
	c.asked++
	c.indexes[at].asked = c.asked
	return c.indexes[at]
}

// buildIndex makes the index for a term as it is in a snapshot. No lock is held:
// attributes are found out here, which may take decoding.
func (c *Cache) buildIndex(ctx context.Context, t Term, snapshot *Snapshot) (*index, error) {
	building := newIndexing(t)
	snapshot.Ascend("", func(e *Entry) bool {
		building.add(c, e)
		return ctx.Err() == nil
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return building.done(), nil
}

// adoptLocked brings an index from the state of a snapshot to that of now, and puts
// it among the others. It returns false where what came between is not known.
func (c *Cache) adoptLocked(ix *index, from *Snapshot) bool {
	if c.phase != live || c.era != from.era || from.changed < c.log.floor {
		return false
	}
	for number := c.log.after(from.changed); number < c.log.end; {
		changes, _ := c.log.from(number)
		for _, change := range changes {
			ix.follow(c, change)
		}
		number += int64(len(changes))
	}
	c.asked++
	ix.asked = c.asked
	// Two may have built the same one.
	c.indexes = slices.DeleteFunc(c.indexes, func(other *index) bool {
		return other.field == ix.field && other.key == ix.key
	})
	if len(c.indexes) >= maxIndexes {
		oldest := slices.MinFunc(c.indexes, func(a, b *index) int { return cmp.Compare(a.asked, b.asked) })
		c.indexes = slices.DeleteFunc(c.indexes, func(other *index) bool { return other == oldest })
	}
	c.indexes = append(c.indexes, ix)
	return true
}

func (c *Cache) attributesOf(e *Entry, field bool) (Attributes, error) {
	if field {
		return e.fields.get(e, c.options.Fields)
	}
	return e.labels.get(e, c.options.Labels)
}

// LabelsOf returns the labels of an entry of this cache.
func (c *Cache) LabelsOf(e *Entry) (Attributes, error) { return c.attributesOf(e, false) }

// FieldsOf returns the selectable fields of an entry of this cache.
func (c *Cache) FieldsOf(e *Entry) (Attributes, error) { return c.attributesOf(e, true) }
