// Package garbage has garbage collected less often while there is much of it and little else.
package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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
)

// Tune lets more garbage pile up while the process allocates much of it: to collect it takes
// as long as what is live is large, and is done again and again where that is little. Of a GET
// it was a fifth. It does nothing where the environment has GOGC, and a limit of the memory
// (GOMEMLIMIT) holds all the same. It is called once, early.
func Tune() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	t := &tuner{percent: usual, last: time.Now()}
	t.await()
}

// tuner is called after each collection, by one at a time.
type tuner struct {
	percent   int
	last      time.Time
	allocated uint64
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
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	live, allocated, now := samples[0].Value.Uint64(), samples[1].Value.Uint64(), time.Now()
	percent := percentOf(live, allocated-t.allocated, now.Sub(t.last))
	t.allocated, t.last = allocated, now
	// To set it stops all goroutines for a moment.
	if percent != t.percent {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentOf is what to set after a collection that has left live bytes, where so many were
// allocated since the last one. It is a multiple of 25, so that it seldom changes.
func percentOf(live, allocated uint64, since time.Duration) int {
	if float64(allocated) < busy*since.Seconds() {
		return usual
	}
	more := min(most-usual, usual*headroom/max(live, 1))
	return usual + int(more)/25*25
}
