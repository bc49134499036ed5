// Package shutdown notifies many waiters of a server's shutdown with a single goroutine.
//
// A server has thousands of watches. A goroutine for each of them that waits for the shutdown
// signal would cost more memory than the watch. With [Waiters], all waiters for the same
// signal share one.
package shutdown

import (
	"maps"
	"slices"
	"sync"
)

// Waiters notifies waiters of a signal, the closing of a channel. A goroutine runs for each
// signal that has waiters. It is safe for concurrent use.
type Waiters[W comparable] struct {
	notify func(W)

	mu     sync.Mutex                    // guards groups and what they hold
	groups map[<-chan struct{}]*group[W] // by signal
}

type group[W comparable] struct {
	waiters map[W]struct{}
	empty   chan struct{} // closed when the last waiter is removed
}

// New returns Waiters without a waiter. notify is called once or twice for each waiter that is
// not removed before the signal, and may still be called while one is being removed.
func New[W comparable](notify func(W)) *Waiters[W] {
	return &Waiters[W]{notify: notify, groups: map[<-chan struct{}]*group[W]{}}
}

// Add adds a waiter, which is notified after the signal, at once if it has been given.
// The caller must remove the waiter later.
func (w *Waiters[W]) Add(signal <-chan struct{}, waiter W) {
	w.mu.Lock()
	g := w.groups[signal]
	if g == nil {
		g = &group[W]{waiters: map[W]struct{}{}, empty: make(chan struct{})}
		w.groups[signal] = g
		go w.wait(signal, g)
	}
	g.waiters[waiter] = struct{}{}
	w.mu.Unlock()
	select {
	case <-signal: // the goroutine may have exited
		w.notify(waiter)
	default:
	}
}

// Remove removes a waiter that was added for the signal. It may be called again.
func (w *Waiters[W]) Remove(signal <-chan struct{}, waiter W) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[signal]
	if g == nil {
		return
	}
	delete(g.waiters, waiter)
	if len(g.waiters) == 0 {
		delete(w.groups, signal)
		close(g.empty)
	}
}

func (w *Waiters[W]) wait(signal <-chan struct{}, g *group[W]) {
	select {
	case <-g.empty:
		return
	case <-signal:
	}
	w.mu.Lock()
	waiters := slices.Collect(maps.Keys(g.waiters))
	w.mu.Unlock()
	for _, waiter := range waiters {
		w.notify(waiter)
	}
}
