package bytecache

import (
	"slices"
	"sort"

	"github.com/tidwall/btree"
)

// pinnedSnapshot is the state at all revisions from one up to, but not including, another.
type pinnedSnapshot struct {
	tree        *btree.BTreeG[*Entry]
	from, until int64
	// base is the value of pinnedSnapshots.replaced at the time when this was the newest
	// state.
	base int64
}

// pinnedSnapshots are the states that the pages of LISTs in progress need. They are bounded
// by the size of the entries replaced since the oldest one, which is the memory that only
// they retain.
type pinnedSnapshots struct {
	// list is sorted, and the states do not overlap.
	list  []pinnedSnapshot
	limit int64
	// replaced is the total size of the entries that were ever replaced in the newest
	// state.
	replaced int64
	// newestPin is the revision of the newest state if that is to be pinned, or 0.
	newestPin int64
}

const (
	// maxPinned bounds the number of pinned states.
	maxPinned = 64
	// treeNodeOverhead is the size of the tree nodes that a change makes a pinned state
	// retain.
	treeNodeOverhead = 512
)

// add pins a state, and drops the oldest one if there are too many.
func (p *pinnedSnapshots) add(s pinnedSnapshot) {
	at := sort.Search(len(p.list), func(i int) bool { return p.list[i].from > s.from })
	p.list = slices.Insert(p.list, at, s)
	if len(p.list) > maxPinned {
		p.list = slices.Delete(p.list, 0, 1)
	}
	p.trim()
}

// replace accounts for an entry that was replaced in the newest state.
func (p *pinnedSnapshots) replace(bytes int64) {
	p.replaced += bytes + treeNodeOverhead
	p.trim()
}

func (p *pinnedSnapshots) trim() {
	gone := 0
	for gone < len(p.list) && p.replaced-p.list[gone].base > p.limit {
		gone++
	}
	p.list = slices.Delete(p.list, 0, gone)
}

// find returns the state at a revision, if it is pinned.
func (p *pinnedSnapshots) find(revision int64) (pinnedSnapshot, bool) {
	at := sort.Search(len(p.list), func(i int) bool { return p.list[i].until > revision })
	if at == len(p.list) || p.list[at].from > revision {
		return pinnedSnapshot{}, false
	}
	return p.list[at], true
}

// retainedBytes returns an upper bound of the memory that only the pinned states retain.
func (p *pinnedSnapshots) retainedBytes() int64 {
	if len(p.list) == 0 {
		return 0
	}
	return p.replaced - p.list[0].base
}

func (p *pinnedSnapshots) reset() { p.list, p.newestPin = nil, 0 }
