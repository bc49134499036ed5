package merged

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"triune.dev/shared/transport/documents"
)

// A server that failed is not asked for firstRetry; the time doubles with each failure up to
// lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// cached is the last known version of a server's document. At most one fetch is in flight at a
// time, and it outlives the request that started it.
type cached[T any] struct {
	// fetch fetches the document. changed is false if the known one is still current.
	fetch func(ctx context.Context, known documents.Tag) (answer[T], error)

	mu       sync.Mutex
	value    T
	tag      documents.Tag
	known    bool
	version  int // number of changes of value
	failures int
	until    time.Time     // value needs no fetch before this time
	flight   chan struct{} // closed when the fetch in flight ends
}

type answer[T any] struct {
	value   T
	tag     documents.Tag
	changed bool
}

// patience is how long a request waits for a fetch: less if it has a known document to use.
type patience struct{ known, unknown time.Duration }

// snapshot is a request's view of a document.
type snapshot[T any] struct {
	value   T
	known   bool
	version int
}

// get returns the document. It fetches it first if fresh has passed since the last fetch.
func (c *cached[T]) get(ctx context.Context, fetches *fetches, fresh time.Duration, wait patience) snapshot[T] {
	c.mu.Lock()
	if time.Now().Before(c.until) {
		defer c.mu.Unlock()
		return c.snapshotLocked()
	}
	if c.flight == nil {
		flight := make(chan struct{})
		if !fetches.start(func(ctx context.Context) {
			defer close(flight)
			c.refresh(ctx, fresh)
		}) {
			defer c.mu.Unlock()
			return c.snapshotLocked()
		}
		c.flight = flight
	}
	flight, limit := c.flight, wait.unknown
	if c.known {
		limit = wait.known
	}
	if c.failures > 0 {
		// The server failed last time, so fetch again but hardly wait.
		limit = min(limit, 100*time.Millisecond)
	}
	c.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-flight:
	case <-timer.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshotLocked()
}

func (c *cached[T]) snapshotLocked() snapshot[T] {
	return snapshot[T]{value: c.value, known: c.known, version: c.version}
}

// refresh fetches the document and stores the result.
func (c *cached[T]) refresh(ctx context.Context, fresh time.Duration) {
	c.mu.Lock()
	known := c.tag
	c.mu.Unlock()
	got, err := c.fetch(ctx, known)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.flight = nil
	if err != nil {
		c.until = time.Now().Add(min(firstRetry<<min(c.failures, 10), lastRetry))
		c.failures++
		return
	}
	c.failures, c.until, c.tag = 0, time.Now().Add(fresh), got.tag
	if got.changed || !c.known {
		c.value, c.known = got.value, true
		c.version++
	}
}

// forget makes the next get fetch.
func (c *cached[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until, c.failures = time.Time{}, 0
}

// fetches tracks the goroutines that fetch, so that Close can wait for them.
type fetches struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// fetchTimeout bounds one fetch. Building Kubernetes' own OpenAPI v2 document takes seconds on
// a small machine.
const fetchTimeout = time.Minute

func newFetches() *fetches {
	ctx, cancel := context.WithCancel(context.Background())
	return &fetches{ctx: ctx, cancel: cancel}
}

func (f *fetches) start(fetch func(ctx context.Context)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.running.Go(func() {
		ctx, cancel := context.WithTimeout(f.ctx, fetchTimeout)
		defer cancel()
		fetch(ctx)
	})
	return true
}

func (f *fetches) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.running.Wait()
}

func logFailure(ctx context.Context, source string, err error) {
	if !errors.Is(err, context.Canceled) {
		klog.FromContext(ctx).Info("openapi of a server is not available", "source", source, "err", err.Error())
	}
}
