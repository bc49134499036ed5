// Package garbage has garbage collected less often while there is much of it and little else,
// and given back afterwards.
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
	// usual is how much garbage there may be before it is collected, in percent of what is
	// live, where nothing is said: as much again.
	usual = 100
	// headroom in bytes is what there may be beyond that in a busy process.
	headroom = 64 << 20
	// most is the largest percentage. A process with next to nothing live gets by with less.
	most = 400
	// busy is the number of bytes that a busy process allocates in a second, and more.
	busy = headroom / 4
	// idle is the number that one without requests does not exceed: triune allocates 0.3 MB.
	idle = 1 << 20
	// calm is how many looks find a process idle that was busy when what is left is given back.
	calm = 5
	// little in bytes is not worth being given back.
	little = 16 << 20
)

// Tune lets more garbage pile up while the process allocates much of it: to collect it takes
// as long as what is live is large, and is done again and again where that is little. Of a GET
// it was a fifth. It does not where the environment has GOGC, and a limit of the memory
// (GOMEMLIMIT) holds all the same. What a busy time has left behind, the start of the process
// among them, is collected and given back once there is hardly anything to do. Tune is called
// once, early.
func Tune() {
	_, told := os.LookupEnv("GOGC")
	start(told, time.Second)
}

func start(told bool, look time.Duration) {
	t := &tuner{told: told, look: look, percent: usual, last: time.Now()}
	t.mu.Lock()
	t.looks = time.AfterFunc(look, t.isOver)
	t.mu.Unlock()
	t.await()
}

// tuner hears of each collection, and looks by itself after a busy one until all is idle.
type tuner struct {
	// told: the environment says how much garbage there may be.
	told bool
	// looks calls isOver, and look is how long after a collection or the look before.
	looks *time.Timer
	look  time.Duration

	mu        sync.Mutex
	percent   int
	last      time.Time
	allocated uint64
	// idle looks came one after another.
	idle int
}

// await has the next collection noted, by an object that does not survive it.
func (t *tuner) await() {
	gone := &struct{ _ [16]byte }{}
	runtime.AddCleanup(gone, func(t *tuner) {
		t.collected()
		t.await()
	}, t)
}

func (t *tuner) collected() {
	t.mu.Lock()
	defer t.mu.Unlock()
	percent := usual
	if t.rate() >= busy {
		percent = percentOf(read(live))
		t.idle = 0
		t.looks.Reset(t.look)
	}
	// To set it stops all goroutines for a moment.
	if percent != t.percent && !t.told {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

func (t *tuner) isOver() {
	t.mu.Lock()
	if t.idle++; t.rate() > idle {
		t.idle = 0
	}
	over := t.idle == calm
	if !over {
		t.looks.Reset(t.look)
	}
	t.mu.Unlock()
	if over {
		GiveBack()
	}
}

// rate is how many bytes the process allocated in a second since it was last asked.
func (t *tuner) rate() float64 {
	sofar, now := read(allocated), time.Now()
	bytes, since := sofar-t.allocated, max(now.Sub(t.last), time.Nanosecond)
	t.allocated, t.last = sofar, now
	return float64(bytes) / since.Seconds()
}

// GiveBack collects what is not in use and gives it back to the operating system, if it is
// worth that. It takes as long as what is live is large. Any goroutine may call it.
func GiveBack() {
	if worthwhile(read(live), read(objects)+read(unused)+read(free)) {
		debug.FreeOSMemory()
	}
}

// worthwhile tells whether of what is held in bytes much is not live.
func worthwhile(live, held uint64) bool { return held > live+max(little, live/4) }

// The names of what is asked for in package runtime/metrics, all in bytes.
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

// percentOf is what to set in a busy process after a collection that has left live bytes. It
// is a multiple of 25, so that it seldom changes.
func percentOf(live uint64) int {
	more := min(most-usual, usual*headroom/max(live, 1))
	return usual + int(more)/25*25
}
