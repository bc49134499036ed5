package bytecache

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// maxIndexes bounds the indexes of one resource. The one that was not asked for
// longest gives way.
const maxIndexes = 16

// index finds the entries by the values of one label or field.
type index struct {
	field bool
	key   string
	// tree is ordered by value, then by key. Like the cache's it is copied on write.
	tree *btree.BTreeG[indexed]
	// unread is how many entries there are of which the value cannot be found out.
	unread int
	// asked is the number of the query that used it last.
	asked uint64
	// bits are those of every object that has the label.
	bits Sketch
}

// indexed is a place in an index.
type indexed struct {
	value string
	entry *Entry
}

func newIndex(field bool, key string) *index {
	less := func(a, b indexed) bool {
		if order := cmp.Compare(a.value, b.value); order != 0 {
			return order < 0
		}
		return a.entry.Key < b.entry.Key
	}
	bits, _ := (&Term{Field: field, Key: key}).bits()
	return &index{field: field, key: key, bits: bits, tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

// covers tells whether the index answers a term.
func (ix *index) covers(t Term) bool { return ix.field == t.Field && ix.key == t.Key }

// place finds an entry's place, at every call the same; ok is false if it has none. unread
// is 1 where that cannot be found out, else 0.
func (ix *index) place(c *Cache, e *Entry) (at indexed, ok bool, unread int) {
	if e == nil || e.absent&ix.bits != 0 {
		return indexed{}, false, 0
	}
	value, has, err := c.valueOf(e, ix.field, ix.key)
	if err != nil {
		return indexed{}, false, 1
	}
	return indexed{value: value, entry: e}, has, 0
}

// valueOf finds out one label or field of an entry. It reads no more than that where it can,
// unless all of them are known already.
func (c *Cache) valueOf(e *Entry, field bool, key string) (value string, has bool, err error) {
	one, found := c.options.Label, &e.labels
	if field {
		one, found = c.options.Field, &e.fields
	}
	if one != nil && found.known.Load() == nil {
		if value, has, known := one(e, key); known {
			return value, has, nil
		}
	}
	all, err := c.attributesOf(e, field)
	value, has = all[key]
	return value, has, err
}

// indexing is an index that is built of entries in the order of their keys.
type indexing struct {
	*index
	// places has a place for each entry, groups the number of its value.
	places []indexed
	groups []int
	// values are all there are, sizes how many entries have them.
	values map[string]int
	sizes  []int
}

func newIndexing(t Term) *indexing {
	// The term is a part of a request that may be much longer.
	return &indexing{index: newIndex(t.Field, strings.Clone(t.Key)), values: map[string]int{}}
}

func (b *indexing) add(c *Cache, e *Entry) {
	at, ok, unread := b.place(c, e)
	b.unread += unread
	if !ok {
		return
	}
	group, known := b.values[at.value]
	if !known {
		group = len(b.sizes)
		b.values[at.value] = group
		b.sizes = append(b.sizes, 0)
	}
	b.sizes[group]++
	b.places = append(b.places, at)
	b.groups = append(b.groups, group)
}

// done returns the index. Only the values are sorted: the entries came in order.
func (b *indexing) done() *index {
	next := make([]int, len(b.sizes)) // where the next place of a group belongs
	at := 0
	for _, value := range slices.Sorted(maps.Keys(b.values)) {
		group := b.values[value]
		next[group] = at
		at += b.sizes[group]
	}
	sorted := make([]indexed, len(b.places))
	for i, place := range b.places {
		group := b.groups[i]
		sorted[next[group]] = place
		next[group]++
	}
	for _, place := range sorted {
		b.tree.Load(place)
	}
	return b.index
}

// follow brings the index to the state after a change.
func (ix *index) follow(c *Cache, change *Change) {
	before, was, unread := ix.place(c, change.Before)
	now, is, stillUnread := ix.place(c, change.Now)
	ix.unread += stillUnread - unread
	if was && (!is || before.value != now.value) {
		ix.tree.Delete(before)
	}
	if is {
		ix.tree.Set(now)
	}
}

// noEntry is before every other in an index's order of keys.
var noEntry = &Entry{}

// ofValue calls yield for the entries that have a value, in the order of keys.
func ofValue(tree *btree.BTreeG[indexed], value string, yield func(*Entry) bool) {
	tree.Ascend(indexed{value: value, entry: noEntry}, func(at indexed) bool {
		return at.value == value && yield(at.entry)
	})
}

// followIndexesLocked brings the indexes to the state after a change.
func (c *Cache) followIndexesLocked(change *Change) {
	for _, ix := range c.indexes {
		ix.follow(c, change)
	}
}
