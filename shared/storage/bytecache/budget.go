package bytecache

import "sync"

// Budget bounds the memory of all derived forms together. It evicts forms by the clock
// algorithm: the oldest first, but a form that was used since the last look gets a second
// chance. It is safe for concurrent use.
type Budget struct {
	limit int64

	mu sync.Mutex
	// queue lists the cached forms, oldest first, from head on; guarded by mu.
	queue []formRef
	head  int
	used  int64 // bytes; guarded by mu
}

// formRef refers to a form by its list and ID, because dropping a neighbor copies the form.
type formRef struct {
	list *formList
	id   FormID
	size int64
}

// NewBudget returns a Budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// formOverhead is the memory of a form, in bytes, beside its data.
const formOverhead = 128

// add accounts for a form that was added to a list, and evicts others to make room.
func (b *Budget) add(list *formList, f *form) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := int64(cap(f.data)) + formOverhead
	b.queue = append(b.queue, formRef{list: list, id: f.id, size: size})
	b.used += size
	// The limit on the steps keeps one addition from walking the whole queue if every form
	// was used.
	for steps := 0; b.used > b.limit && b.head < len(b.queue)-1; steps++ {
		oldest := b.queue[b.head]
		b.queue[b.head] = formRef{}
		b.head++
		if steps < 64 && oldest.list.clearUsed(oldest.id) {
			b.queue = append(b.queue, oldest)
			continue
		}
		oldest.list.drop(oldest.id)
		b.used -= oldest.size
	}
	if b.head > 1024 && b.head > len(b.queue)/2 {
		b.queue = append([]formRef(nil), b.queue[b.head:]...)
		b.head = 0
	}
}

// Used returns the bytes of all cached derived forms.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
