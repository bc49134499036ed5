package freshness

import (
	"context"
	"fmt"
	"sync"
	"time"

	"triune.dev/shared/etcdstore/kv"
)

// Etcd answers the questions. *kv.Client does; it documents errors.
type Etcd interface {
	ModRevisions(ctx context.Context, anchor string, keys []string) ([]int64, int64, error)
}

const (
	// concurrent is how many questions are under way at once. More than one, so that
	// a slow answer does not hold up those who come after; few, so that the others
	// gather meanwhile.
	concurrent = 2
	// patience ends a question that etcd does not answer. Readers have deadlines of
	// their own, so this only frees the place of the question.
	patience = 30 * time.Second
)

// Prober asks one etcd. It is safe for concurrent use.
type Prober struct {
	etcd   Etcd
	anchor string

	mu      sync.Mutex
	sent    int       // questions under way; guarded by mu
	waiting *question // not sent yet, nil if nobody waits; guarded by mu
}

// question is what a number of readers want to know. Its fields up to done are
// written before done is closed.
type question struct {
	keys      []string
	mods      []int64
	revision  int64
	err       error
	done      chan struct{}
	following *question // to be sent after this one: it did not fit
}

// New makes a Prober. anchor is a key that may be read; it need not exist.
func New(etcd Etcd, anchor string) *Prober { return &Prober{etcd: etcd, anchor: anchor} }

// Revision returns etcd's revision, which is not older than the call.
func (p *Prober) Revision(ctx context.Context) (int64, error) {
	q, _ := p.join("")
	if err := q.wait(ctx); err != nil {
		return 0, err
	}
	return q.revision, nil
}

// Confirmed is etcd's word on a key.
type Confirmed struct {
	// ModRevision is that of the key, 0 if there is none.
	ModRevision int64
	// Revision is the one at which that is true, not older than the question.
	Revision int64
}

// Confirm returns the mod revision of a key as it is after the call began.
func (p *Prober) Confirm(ctx context.Context, key string) (Confirmed, error) {
	q, at := p.join(key)
	if err := q.wait(ctx); err != nil {
		return Confirmed{}, err
	}
	return Confirmed{ModRevision: q.mods[at], Revision: q.revision}, nil
}

func (q *question) wait(ctx context.Context) error {
	select {
	case <-q.done:
	case <-ctx.Done():
		return fmt.Errorf("ask etcd for its revision: %w", ctx.Err())
	}
	return q.err
}

// join adds a reader, and its key unless that is empty, to the next question.
func (p *Prober) join(key string) (*question, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.waiting
	for q != nil && q.following != nil {
		q = q.following
	}
	if q == nil || key != "" && len(q.keys) == kv.MaxConfirmed {
		fresh := &question{done: make(chan struct{})}
		if q == nil {
			p.waiting = fresh
		} else {
			q.following = fresh
		}
		q = fresh
	}
	at := len(q.keys)
	if key != "" {
		q.keys = append(q.keys, key)
	}
	if p.sent < concurrent {
		p.sent++
		go p.ask(p.takeLocked())
	}
	return q, at
}

// ask sends one question after another, until none waits. It keeps its goroutine, for
// the way to an etcd in the same process needs a stack that has grown.
func (p *Prober) ask(q *question) {
	for q != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		q.mods, q.revision, q.err = p.etcd.ModRevisions(ctx, p.anchor, q.keys)
		cancel()
		close(q.done)
		q = p.next()
	}
}

// next is the question that waits. Without one, the place of its sender is free.
func (p *Prober) next() *question {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.sent--
		return nil
	}
	return p.takeLocked()
}

func (p *Prober) takeLocked() *question {
	q := p.waiting
	p.waiting, q.following = q.following, nil
	return q
}
