package bytecache

import "sync/atomic"

// alarm wakes, once, all cursors that sleep on it.
type alarm struct {
	rung chan struct{}
	// asleep counts those who ever slept on it: about how much work it is to wake
	// them.
	asleep atomic.Int64
}

func newAlarm() *alarm { return &alarm{rung: make(chan struct{})} }

// manyAsleep is the number of sleepers beyond which waking them, some 100 ns each,
// is not done by the goroutine that feeds all resources: one with many watchers must
// not delay the others.
const manyAsleep = 256

// ring is called once, without any lock: those who wake want them.
func (a *alarm) ring() {
	if a.asleep.Load() > manyAsleep {
		go close(a.rung) // it blocks on nothing, and ends at once
		return
	}
	close(a.rung)
}
