package merged

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"triune.dev/shared/fetch"
)

// failedFor is how long a server that failed is left alone, at first; it doubles
// up to failedAtMost.
const (
	failedFor    = time.Second
	failedAtMost = 30 * time.Second
)

// watched is a document of a server as it was last seen. At most one question is
// under way at a time, and it outlives the request that asked it.
type watched[T any] struct {
	// ask puts the question. changed is false if the answer of known still holds.
	ask func(ctx context.Context, known fetch.Tag) (answer[T], error)

	mu       sync.Mutex
	value    T
	tag      fetch.Tag
	known    bool
	version  int // counts the values
	failures int
	until    time.Time     // what is known is good enough until then
	flight   chan struct{} // closed when the question under way is answered
}

type answer[T any] struct {
	value   T
	tag     fetch.Tag
	changed bool
}

// patience says how long a request waits for an answer: less when it has something
// to go on with.
type patience struct{ known, unknown time.Duration }

// seen is what a request sees of a document.
type seen[T any] struct {
	value   T
	known   bool
	version int
}

// get returns the document, after asking if fresh has passed since the last
// answer.
func (w *watched[T]) get(ctx context.Context, questions *questions, fresh time.Duration, wait patience) seen[T] {
	w.mu.Lock()
	if time.Now().Before(w.until) {
		defer w.mu.Unlock()
		return w.seenLocked()
	}
	if w.flight == nil {
		flight := make(chan struct{})
		if !questions.start(func(ctx context.Context) {
			defer close(flight)
			w.fly(ctx, fresh)
		}) {
			defer w.mu.Unlock()
			return w.seenLocked()
		}
		w.flight = flight
	}
	flight, limit := w.flight, wait.unknown
	if w.known {
		limit = wait.known
	}
	if w.failures > 0 {
		// It is asked, but nobody waits for somebody who was not there last time.
		limit = min(limit, 100*time.Millisecond)
	}
	w.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-flight:
	case <-timer.C:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seenLocked()
}

func (w *watched[T]) seenLocked() seen[T] {
	return seen[T]{value: w.value, known: w.known, version: w.version}
}

// fly puts the question and takes over the answer.
func (w *watched[T]) fly(ctx context.Context, fresh time.Duration) {
	w.mu.Lock()
	known := w.tag
	w.mu.Unlock()
	got, err := w.ask(ctx, known)

	w.mu.Lock()
	defer w.mu.Unlock()
	w.flight = nil
	if err != nil {
		w.until = time.Now().Add(min(failedFor<<min(w.failures, 10), failedAtMost))
		w.failures++
		return
	}
	w.failures, w.until, w.tag = 0, time.Now().Add(fresh), got.tag
	if got.changed || !w.known {
		w.value, w.known = got.value, true
		w.version++
	}
}

// forget makes the next get ask.
func (w *watched[T]) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until, w.failures = time.Time{}, 0
}

// questions keeps account of the goroutines that ask, so that Close can wait for
// them.
type questions struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// askTimeout bounds one question. Building Kubernetes' own OpenAPI v2 takes
// seconds on a small machine.
const askTimeout = time.Minute

func newQuestions() *questions {
	ctx, cancel := context.WithCancel(context.Background())
	return &questions{ctx: ctx, cancel: cancel}
}

func (q *questions) start(ask func(ctx context.Context)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.running.Go(func() {
		ctx, cancel := context.WithTimeout(q.ctx, askTimeout)
		defer cancel()
		ask(ctx)
	})
	return true
}

func (q *questions) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.cancel()
	q.running.Wait()
}

func logFailure(ctx context.Context, source string, err error) {
	if !errors.Is(err, context.Canceled) {
		klog.FromContext(ctx).Info("openapi of a server is not available", "source", source, "err", err.Error())
	}
}
