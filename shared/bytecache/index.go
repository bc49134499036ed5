package bytecache

import (
	"cmp"

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
	// asked is the number of the query that used it last.
	asked uint64
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
	return &index{field: field, key: key, tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

// covers tells whether the index answers a term.
func (ix *index) covers(t Term) bool { return ix.field == t.Field && ix.key == t.Key }

// place finds an entry's place, at every call the same; ok is false if it has none.
func (ix *index) place(c *Cache, e *Entry) (at indexed, ok bool) {
	if e == nil {
		return indexed{}, false
	}
	if ix.field && c.options.Field != nil && e.fields.known.Load() == nil {
		if value, known := c.options.Field(e, ix.key); known {
			return indexed{value: value, entry: e}, true
		}
	}
	all, err := c.attributesOf(e, ix.field)
	if err != nil {
		return indexed{}, false
	}
	value, ok := all[ix.key]
	return indexed{value: value, entry: e}, ok
}

// follow brings the index to the state after a change.
func (ix *index) follow(c *Cache, change *Change) {
	before, was := ix.place(c, change.Before)
	now, is := ix.place(c, change.Now)
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
