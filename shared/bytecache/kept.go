package bytecache

import (
	"slices"
	"sort"

	"github.com/tidwall/btree"
)

// keptSnapshot is the state of all revisions from one to before another.
type keptSnapshot struct {
	tree        *btree.BTreeG[*Entry]
	from, until int64
	// base is what keptSnapshots.replaced was when this was the newest state.
	base int64
}

// keptSnapshots are the states that the pages of begun LISTs need. They are bounded
// by the bytes of what was replaced since the oldest, which is all that they keep
// alive and the newest state does not.
type keptSnapshots struct {
	// list is in order; the states do not overlap.
	list  []keptSnapshot
	limit int64
	// replaced sums up what has left the newest state, for as long as the cache
	// lives.
	replaced int64
	// wanted is the state that is to be kept although it is still the newest.
	wanted int64
}

const (
	// maxKept bounds the number of kept states.
	maxKept = 64
	// nodeOverhead is what a change costs a kept state for the tree's own nodes.
	nodeOverhead = 512
)

// add keeps a state, and forgets the oldest if there are too many.
func (k *keptSnapshots) add(s keptSnapshot) {
	at := sort.Search(len(k.list), func(i int) bool { return k.list[i].from > s.from })
	k.list = slices.Insert(k.list, at, s)
	if len(k.list) > maxKept {
		k.list = slices.Delete(k.list, 0, 1)
	}
	k.trim()
}

// replace notes that so many bytes are no longer in the newest state.
func (k *keptSnapshots) replace(bytes int64) {
	k.replaced += bytes + nodeOverhead
	k.trim()
}

func (k *keptSnapshots) trim() {
	gone := 0
	for gone < len(k.list) && k.replaced-k.list[gone].base > k.limit {
		gone++
	}
	k.list = slices.Delete(k.list, 0, gone)
}

// at returns the state at a revision, if it is kept.
func (k *keptSnapshots) at(revision int64) (keptSnapshot, bool) {
	at := sort.Search(len(k.list), func(i int) bool { return k.list[i].until > revision })
	if at == len(k.list) || k.list[at].from > revision {
		return keptSnapshot{}, false
	}
	return k.list[at], true
}

// held is the most that the kept states keep alive by themselves.
func (k *keptSnapshots) held() int64 {
	if len(k.list) == 0 {
		return 0
	}
	return k.replaced - k.list[0].base
}

func (k *keptSnapshots) restart() { k.list, k.wanted = nil, 0 }
