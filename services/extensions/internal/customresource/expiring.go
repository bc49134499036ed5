package customresource

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleTimeout is the least time without use after which a value is dropped; the most is
// twice as long. Controllers write their objects continually, and most CRDs of a cluster
// have no writes for days.
const idleTimeout = 5 * time.Minute

// expiring is a value that is built on demand and dropped when it has not been used for a
// while. It is for values that are expensive to build and large. A caller of get may use
// the value for as long as it likes. An expiring is safe for concurrent use.
type expiring[T any] struct {
	build func() (*T, error)
	value atomic.Pointer[T]
	// used reports whether get was called since the last sweep.
	used atomic.Bool

	mu sync.Mutex // held during build; guards the fields below
	// sweeping is the timer of the next sweep; nil before the first value.
	sweeping *time.Timer
	stopped  bool
}

func newExpiring[T any](build func() (*T, error)) *expiring[T] { return &expiring[T]{build: build} }

// get returns the value and builds it if necessary. After an error the next call tries
// again.
func (e *expiring[T]) get() (*T, error) {
	if !e.used.Load() {
		e.used.Store(true)
	}
	if value := e.value.Load(); value != nil {
		return value, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if value := e.value.Load(); value != nil {
		return value, nil
	}
	value, err := e.build()
	if err != nil {
		return nil, err
	}
	e.value.Store(value)
	if !e.stopped {
		e.sweeping = time.AfterFunc(idleTimeout, e.sweep)
	}
	return value, nil
}

// sweep drops the value if it was not used since the last sweep. A concurrent get sets used
// before it loads the value, so sweep restores the value in that case.
func (e *expiring[T]) sweep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	value := e.value.Swap(nil)
	if e.stopped || e.used.Swap(false) {
		e.value.Store(value)
	}
	if !e.stopped && e.value.Load() != nil {
		e.sweeping.Reset(idleTimeout)
	}
}

// stop ends the sweeps; the value stays, for requests that still use it.
func (e *expiring[T]) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	if e.sweeping != nil {
		e.sweeping.Stop()
	}
}
