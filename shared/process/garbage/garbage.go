// Package garbage tunes the garbage collector for a server with a small live heap: it collects
// less often while the server is busy, and returns unused memory to the operating system when
// the server is idle.
package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// defaultPercent is the default of GOGC.
	defaultPercent = 100
	// headroom is the additional garbage, in bytes, that is allowed in a busy process. Decision
	// 25 has the cost and the gain of other values.
	headroom = 32 << 20
	// maxPercent bounds the percentage, for a process with a tiny live heap.
	maxPercent = 400
	// busyRate is the allocation rate, in bytes per second, from which on a process is
	// busy.
	busyRate = 16 << 20
	// idleRate is the allocation rate up to which a process is idle. triune without
	// requests allocates 0.3 MB per second.
	idleRate = 1 << 20
	// idleChecks is the number of successive idle checks after which unused memory is
	// returned.
	idleChecks = 5
	// minReturned is the least number of bytes that is worth returning.
	minReturned = 16 << 20
)

// Tune allows more garbage while the process allocates much of it. A collection takes time
// in proportion to the live heap, and is frequent if that is small; it took a fifth of the
// time of a GET. Tune changes nothing if GOGC is set, and a memory limit (GOMEMLIMIT) stays
// in force. When a busy process, which includes the start of a process, becomes idle, its
// unused memory is collected and returned to the operating system. Call Tune once, early.
func Tune() {
	_, fixed := os.LookupEnv("GOGC")
	start(fixed, time.Second)
}

func start(fixed bool, interval time.Duration) {
	t := &tuner{fixed: fixed, interval: interval, percent: defaultPercent, last: time.Now()}
	t.mu.Lock()
	t.timer = time.AfterFunc(interval, t.check)
	t.mu.Unlock()
	t.awaitCollection()
}

// tuner observes every collection. After one in a busy process it checks periodically until
// the process is idle.
type tuner struct {
	// fixed says that GOGC is set.
	fixed bool
	// timer calls check, an interval after a collection or the last check.
	timer    *time.Timer
	interval time.Duration

	mu        sync.Mutex
	percent   int
	last      time.Time
	allocated uint64
	// idle is the number of successive idle checks.
	idle int
}

// awaitCollection has the next collection observed, by an object that does not survive it.
func (t *tuner) awaitCollection() {
	sentinel := &struct{ _ [16]byte }{}
	runtime.AddCleanup(sentinel, func(t *tuner) {
		t.collected()
		t.awaitCollection()
	}, t)
}

func (t *tuner) collected() {
	t.mu.Lock()
	defer t.mu.Unlock()
	percent := defaultPercent
	if t.rate() >= busyRate {
		percent = percentOf(read(live))
		t.idle = 0
		t.timer.Reset(t.interval)
	}
	// SetGCPercent stops the world, so call it only for a change.
	if percent != t.percent && !t.fixed {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

func (t *tuner) check() {
	t.mu.Lock()
	if t.idle++; t.rate() > idleRate {
		t.idle = 0
	}
	over := t.idle == idleChecks
	if !over {
		t.timer.Reset(t.interval)
	}
	t.mu.Unlock()
	if over {
		ReturnUnused()
	}
}

// rate returns the number of bytes per second that were allocated since the last call.
func (t *tuner) rate() float64 {
	total, now := read(allocated), time.Now()
	bytes, since := total-t.allocated, max(now.Sub(t.last), time.Nanosecond)
	t.allocated, t.last = total, now
	return float64(bytes) / since.Seconds()
}

// ReturnUnused collects garbage and returns unused memory to the operating system, if there
// is enough of it. It takes time in proportion to the live heap. Any goroutine may call it.
func ReturnUnused() {
	if worthReturning(read(live), read(objects)+read(unused)+read(free)) {
		debug.FreeOSMemory()
	}
}

// worthReturning reports whether much of the held memory is not live, both in bytes.
func worthReturning(live, held uint64) bool { return held > live+max(minReturned, live/4) }

// The names of metrics in package runtime/metrics, all in bytes.
const (
	live      = "/gc/heap/live:bytes"
	allocated = "/gc/heap/allocs:bytes"
	objects   = "/memory/classes/heap/objects:bytes"
	unused    = "/memory/classes/heap/unused:bytes"
	free      = "/memory/classes/heap/free:bytes"
)

func read(name string) uint64 {
	samples := []metrics.Sample{{Name: name}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}

// percentOf returns the percentage for a busy process with so many live bytes. It is a
// multiple of 25, so that it seldom changes.
func percentOf(live uint64) int {
	more := min(maxPercent-defaultPercent, defaultPercent*headroom/max(live, 1))
	return defaultPercent + int(more)/25*25
}
