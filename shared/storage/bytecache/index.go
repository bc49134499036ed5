package bytecache

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// maxIndexes bounds the indexes of one resource. The least recently used one is replaced.
const maxIndexes = 16

// index finds entries by the value of one label or field.
type index struct {
	field bool
	key   string
	// tree is ordered by value, then by key. It is copy-on-write.
	tree *btree.BTreeG[indexEntry]
	// unreadable is the number of entries whose value cannot be read.
	unreadable int
	// lastQuery is the number of the query that last used the index.
	lastQuery uint64
	// filter is set in the filter of every object that has the label.
	filter LabelFilter
}

// indexEntry is an entry of an index.
type indexEntry struct {
	value string
	entry *Entry
}

func newIndex(field bool, key string) *index {
	less := func(a, b indexEntry) bool {
		if order := cmp.Compare(a.value, b.value); order != 0 {
			return order < 0
		}
		return a.entry.Key < b.entry.Key
	}
	filter, _ := (&Term{Field: field, Key: key}).filter()
	return &index{field: field, key: key, filter: filter, tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

// covers reports whether the index answers a term.
func (ix *index) covers(t Term) bool { return ix.field == t.Field && ix.key == t.Key }

// entryFor returns the index entry of e; ok is false if there is none. It returns the same
// result on every call. unreadable is 1 if the value cannot be read, else 0.
func (ix *index) entryFor(c *Cache, e *Entry) (at indexEntry, ok bool, unreadable int) {
	if e == nil || e.absent&ix.filter != 0 {
		return indexEntry{}, false, 0
	}
	value, has, err := c.valueOf(e, ix.field, ix.key)
	if err != nil {
		return indexEntry{}, false, 1
	}
	return indexEntry{value: value, entry: e}, has, 0
}

// valueOf returns one label or field of an entry. It reads no other attributes if that is
// possible, unless all are already known.
func (c *Cache) valueOf(e *Entry, field bool, key string) (value string, has bool, err error) {
	lookup, all := c.options.Label, &e.labels
	if field {
		lookup, all = c.options.Field, &e.fields
	}
	if lookup != nil && all.known.Load() == nil {
		if value, has, known := lookup(e, key); known {
			return value, has, nil
		}
	}
	attributes, err := c.attributesOf(e, field)
	value, has = attributes[key]
	return value, has, err
}

// indexBuilder builds an index from entries in the order of their keys.
type indexBuilder struct {
	*index
	// entries and groups are parallel; groups has the group number of each entry's value.
	entries []indexEntry
	groups  []int
	// values maps each value to its group number, sizes has the number of entries in each
	// group.
	values map[string]int
	sizes  []int
}

func newIndexBuilder(t Term) *indexBuilder {
	// The key is a substring of a request that may be much longer.
	return &indexBuilder{index: newIndex(t.Field, strings.Clone(t.Key)), values: map[string]int{}}
}

func (b *indexBuilder) add(c *Cache, e *Entry) {
	at, ok, unreadable := b.entryFor(c, e)
	b.unreadable += unreadable
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
	b.entries = append(b.entries, at)
	b.groups = append(b.groups, group)
}

// done returns the index. Only the values need sorting, because the entries came in order.
func (b *indexBuilder) done() *index {
	next := make([]int, len(b.sizes)) // the position of the next entry of each group
	at := 0
	for _, value := range slices.Sorted(maps.Keys(b.values)) {
		group := b.values[value]
		next[group] = at
		at += b.sizes[group]
	}
	sorted := make([]indexEntry, len(b.entries))
	for i, logPosition := range b.entries {
		group := b.groups[i]
		sorted[next[group]] = logPosition
		next[group]++
	}
	for _, logPosition := range sorted {
		b.tree.Load(logPosition)
	}
	return b.index
}

// follow applies a change to the index.
func (ix *index) follow(c *Cache, change *Change) {
	before, was, unreadable := ix.entryFor(c, change.Before)
	now, is, nowUnreadable := ix.entryFor(c, change.Now)
	ix.unreadable += nowUnreadable - unreadable
	if was && (!is || before.value != now.value) {
		ix.tree.Delete(before)
	}
	if is {
		ix.tree.Set(now)
	}
}

// noEntry sorts before every other entry of the same value.
var noEntry = &Entry{}

// ascendValue calls yield for the entries with a value, in the order of keys.
func ascendValue(tree *btree.BTreeG[indexEntry], value string, yield func(*Entry) bool) {
	tree.Ascend(indexEntry{value: value, entry: noEntry}, func(at indexEntry) bool {
		return at.value == value && yield(at.entry)
	})
}

// updateIndexesLocked applies a change to all indexes.
func (c *Cache) updateIndexesLocked(change *Change) {
	for _, ix := range c.indexes {
		ix.follow(c, change)
	}
}
