package bytecache

import "sync"

// Budget bounds the memory of all derived forms together. The ones that were not
// used since it last came by go first. It is safe for concurrent use.
type Budget struct {
	limit int64

	mu sync.Mutex
	// queue of what is held, oldest first from head on; guarded by mu.
	queue []queued
	head  int
	held  int64 // bytes; guarded by mu
}

// queued names a form by its place: forms are copied when a neighbour goes.
type queued struct {
	list *formList
	kind Kind
	size int64
}

// NewBudget bounds derived forms to so many bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// formOverhead is what a form needs beside its bytes, here and in its list.
const formOverhead = 128

// add notes a form that was put into a list, and makes room for it.
func (b *Budget) add(list *formList, f *form) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := int64(cap(f.data)) + formOverhead
	b.queue = append(b.queue, queued{list: list, kind: f.kind, size: size})
	b.held += size
	// Each form gets a second chance if it was used; the bound on the steps keeps
	// one addition from walking the whole queue when all were.
	for steps := 0; b.held > b.limit && b.head < len(b.queue)-1; steps++ {
		oldest := b.queue[b.head]
		b.queue[b.head] = queued{}
		b.head++
		if steps < 64 && oldest.list.spare(oldest.kind) {
			b.queue = append(b.queue, oldest)
			continue
		}
		oldest.list.drop(oldest.kind)
		b.held -= oldest.size
	}
	if b.head > 1024 && b.head > len(b.queue)/2 {
		b.queue = append([]queued(nil), b.queue[b.head:]...)
		b.head = 0
	}
}

// Held returns the bytes of derived forms that are kept now.
func (b *Budget) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}
