package bytecache

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// Term is a requirement of a selector: a label or field that has one of some values, or
// exists. Negative requirements have no index.
type Term struct {
	// Field is true for a selectable field, false for a label.
	Field bool
	Key   string
	// Values are the accepted values; nil accepts every value.
	Values []string
}

func (t *Term) allows(value string) bool { return t.Values == nil || slices.Contains(t.Values, value) }

// Selection is a result of Select.
type Selection struct {
	// Entries are sorted by key.
	Entries  []*Entry
	Revision int64
	// Indexed reports whether Entries are valid. It is false if an index does not help,
	// because too many objects match the term or some cannot be read; the caller then scans
	// a Snapshot.
	Indexed bool
}

// alwaysSelective is the number of matches up to which an index is used regardless of their
// share of all objects.
const alwaysSelective = 64

// maxLockedSelect is the number of matches up to which they are collected under the lock.
// More are collected from a copy of the index, which makes the next writes more expensive.
const maxLockedSelect = 256

// Select returns the entries that match a term. The first query of a label or field builds
// an index of it. Select loads the cache first if necessary.
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
		if c.installIndexLocked(ix, snapshot) {
			return c.selectLocked(ix, t, values), nil
		}
		c.mu.Unlock()
	}
}

// maxAskedOnce bounds the terms remembered after one query.
const maxAskedOnce = 4 * maxIndexes

// WorthIndex reports whether Select should answer the term: there is an index of its label
// or field, or WorthIndex was called for it before. Looking at each object once is cheaper
// than building an index, which pays off from the second query on.
func (c *Cache) WorthIndex(t Term) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := func(o Term) bool { return o.Field == t.Field && o.Key == t.Key }
	if c.hasIndexLocked(t) || slices.ContainsFunc(c.askedOnce, same) {
		return true
	}
	if len(c.askedOnce) == maxAskedOnce {
		c.askedOnce = slices.Delete(c.askedOnce, 0, 1)
	}
	c.askedOnce = append(c.askedOnce, Term{Field: t.Field, Key: strings.Clone(t.Key)}) // not a substring of a long request
	return false
}

// Indexed reports whether there is an index of the label or field of a term.
func (c *Cache) Indexed(t Term) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hasIndexLocked(t)
}

func (c *Cache) hasIndexLocked(t Term) bool {
	return slices.ContainsFunc(c.indexes, func(ix *index) bool { return ix.covers(t) })
}

// selectLocked reads an index. It unlocks mu: before it returns, or as soon as it has
// copied the index to collect many matches.
func (c *Cache) selectLocked(ix *index, t Term, values []string) Selection {
	s := Selection{Revision: c.revisionLocked()}
	if ix.unreadable > 0 {
		c.mu.Unlock()
		return s
	}
	limit := max(alwaysSelective, c.tree.Len()/4)
	if t.Values != nil {
		if entries, ok := collect(ix.tree, values, min(limit, maxLockedSelect)); ok {
			c.mu.Unlock()
			s.Entries, s.Indexed = entries, true
			sortByKey(s.Entries, len(values))
			return s
		}
	}
	tree := ix.tree.Copy()
	c.mu.Unlock()
	if t.Values != nil {
		s.Entries, s.Indexed = collect(tree, values, limit)
	} else if s.Indexed = tree.Len() <= limit; s.Indexed {
		s.Entries = make([]*Entry, 0, tree.Len())
		tree.Scan(func(at indexEntry) bool {
			s.Entries = append(s.Entries, at.entry)
			return true
		})
	}
	sortByKey(s.Entries, 0)
	return s
}

// collect returns the entries with one of the values; ok is false if there are more than
// limit.
func collect(tree *btree.BTreeG[indexEntry], values []string, limit int) (entries []*Entry, ok bool) {
	tooMany := false
	for _, value := range values {
		ascendValue(tree, value, func(e *Entry) bool {
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

// sortByKey sorts the matches of a number of values; values is 0 if every value matches.
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
	c.queries++
	c.indexes[at].lastQuery = c.queries
	return c.indexes[at]
}

// buildIndex builds the index for a term from a snapshot. It holds no lock, because
// attributes may have to be decoded.
func (c *Cache) buildIndex(ctx context.Context, t Term, snapshot *Snapshot) (*index, error) {
	building := newIndexBuilder(t)
	snapshot.Ascend("", func(e *Entry) bool {
		building.add(c, e)
		return ctx.Err() == nil
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return building.done(), nil
}

// installIndexLocked updates an index from a snapshot to the current state and installs it.
// It returns false if the log does not have all changes since the snapshot.
func (c *Cache) installIndexLocked(ix *index, from *Snapshot) bool {
	if c.phase != live || c.epoch != from.epoch || from.changed < c.log.floor {
		return false
	}
	for number := c.log.after(from.changed); number < c.log.end; {
		changes, _ := c.log.from(number)
		for _, change := range changes {
			ix.follow(c, change)
		}
		number += int64(len(changes))
	}
	c.queries++
	ix.lastQuery = c.queries
	// Another query may have built the same index.
	c.indexes = slices.DeleteFunc(c.indexes, func(other *index) bool {
		return other.field == ix.field && other.key == ix.key
	})
	if len(c.indexes) >= maxIndexes {
		oldest := slices.MinFunc(c.indexes, func(a, b *index) int { return cmp.Compare(a.lastQuery, b.lastQuery) })
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
