package customresource

import (
	"sync"
	"sync/atomic"
	"time"
)

// keptFor is how long something that nobody asks for is kept, and at most twice as
// long: a controller writes its objects again and again, and most definitions of a
// cluster are not written to for days.
const keptFor = 5 * time.Minute

// kept is a value that is dear to make and large to keep: it is made when it is asked
// for, and let go of when nobody has asked for a while. Who has it may use it on. It is
// safe for concurrent use.
type kept[T any] struct {
	build func() (*T, error)
	value atomic.Pointer[T]
	// used since the sweep came by.
	used atomic.Bool

	mu sync.Mutex // held while the value is made, and guards what is below
	// sweeping is nil while there is no value.
	sweeping *time.Timer
	stopped  bool
}

func newKept[T any](build func() (*T, error)) *kept[T] { return &kept[T]{build: build} }

// get returns the value. Where it cannot be made the next call tries again.
func (k *kept[T]) get() (*T, error) {
	if !k.used.Load() {
		k.used.Store(true)
	}
	if value := k.value.Load(); value != nil {
		return value, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if value := k.value.Load(); value != nil {
		return value, nil
	}
	value, err := k.build()
	if err != nil {
		return nil, err
	}
	k.value.Store(value)
	if !k.stopped {
		k.sweeping = time.AfterFunc(keptFor, k.sweep)
	}
	return value, nil
}

// sweep lets go of the value if nobody has asked for it since the last time. Who asks
// meanwhile has said so before looking at it, and gets the same one again.
func (k *kept[T]) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	value := k.value.Swap(nil)
	if k.stopped || k.used.Swap(false) {
		k.value.Store(value)
	}
	if !k.stopped && k.value.Load() != nil {
		k.sweeping.Reset(keptFor)
	}
}

// stop ends the sweeps: what is there is kept, for those who still use it.
func (k *kept[T]) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	if k.sweeping != nil {
		k.sweeping.Stop()
	}
}
