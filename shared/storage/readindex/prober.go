package readindex

import (
	"context"
	"fmt"
	"sync"
	"time"

	"triune.dev/shared/storage/kv"
)

// Etcd returns mod revisions of keys, and the revision of etcd. *kv.Client implements it,
// and documents the errors.
type Etcd interface {
	ModRevisions(ctx context.Context, anchor string, keys []string) ([]int64, int64, error)
}

const (
	// maxInFlight is the number of concurrent requests: more than one, so that a slow
	// response does not delay the next readers; few, so that readers gather meanwhile.
	maxInFlight = 2
	// requestTimeout bounds a request. Readers have deadlines of their own; this one only
	// ends a request that etcd does not answer.
	requestTimeout = 30 * time.Second
)

// Prober sends requests to one etcd. It is safe for concurrent use.
type Prober struct {
	etcd   Etcd
	anchor string

	mu       sync.Mutex
	inFlight int      // guarded by mu
	waiting  *request // first of the requests not sent yet; guarded by mu
}

// request is shared by a number of readers. The fields up to done are written before done
// is closed.
type request struct {
	keys     []string
	mods     []int64
	revision int64
	err      error
	done     chan struct{}
	next     *request // in the list of waiting requests
}

// New returns a Prober. anchor is a readable key, which need not exist.
func New(etcd Etcd, anchor string) *Prober { return &Prober{etcd: etcd, anchor: anchor} }

// Revision returns the revision of etcd at some time after the call began.
func (p *Prober) Revision(ctx context.Context) (int64, error) {
	q, _ := p.join("")
	if err := q.wait(ctx); err != nil {
		return 0, err
	}
	return q.revision, nil
}

// Confirmed is the state of a key in etcd.
type Confirmed struct {
	// ModRevision is the mod revision of the key, 0 if it does not exist.
	ModRevision int64
	// Revision is the revision of etcd in the same response.
	Revision int64
}

// Confirm returns the mod revision of a key at some time after the call began.
func (p *Prober) Confirm(ctx context.Context, key string) (Confirmed, error) {
	q, at := p.join(key)
	if err := q.wait(ctx); err != nil {
		return Confirmed{}, err
	}
	return Confirmed{ModRevision: q.mods[at], Revision: q.revision}, nil
}

func (q *request) wait(ctx context.Context) error {
	select {
	case <-q.done:
	case <-ctx.Done():
		return fmt.Errorf("ask etcd for its revision: %w", ctx.Err())
	}
	return q.err
}

// join adds a reader to the next request, with its key unless that is empty.
func (p *Prober) join(key string) (*request, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.waiting
	for q != nil && q.next != nil {
		q = q.next
	}
	if q == nil || key != "" && len(q.keys) == kv.MaxConfirmed {
		added := &request{done: make(chan struct{})}
		if q == nil {
			p.waiting = added
		} else {
			q.next = added
		}
		q = added
	}
	at := len(q.keys)
	if key != "" {
		q.keys = append(q.keys, key)
	}
	if p.inFlight < maxInFlight {
		p.inFlight++
		go p.send(p.takeLocked())
	}
	return q, at
}

// send sends a request, and then others until none is waiting. It stays on its goroutine,
// because calls of an etcd in the same process need a large stack.
func (p *Prober) send(q *request) {
	for q != nil {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		q.mods, q.revision, q.err = p.etcd.ModRevisions(ctx, p.anchor, q.keys)
		cancel()
		close(q.done)
		q = p.nextOrDone()
	}
}

// nextOrDone returns the next waiting request. If there is none it returns nil, and the
// sender is done.
func (p *Prober) nextOrDone() *request {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.inFlight--
		return nil
	}
	return p.takeLocked()
}

func (p *Prober) takeLocked() *request {
	q := p.waiting
	p.waiting, q.next = q.next, nil
	return q
}
