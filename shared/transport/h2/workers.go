package h2

import (
	"sync"
	"time"
)

// workers runs handlers on reused goroutines: a new goroutine starts with a small stack, and
// handling a request would copy it to a larger one every time. The zero value is ready to use.
type workers struct {
	mu sync.Mutex // guards all fields below

	// idle is a stack: the worker that became idle last is used first.
	idle []*worker
	// unused is the minimum length of idle since the last stopUnused.
	unused        int
	stopScheduled bool
}

// worker is a goroutine that runs tasks.
type worker struct{ tasks chan task }

// task is run by a worker.
type task interface{ run() }

const (
	// maxIdle bounds the idle workers. The garbage collector halves unused stacks.
	maxIdle = 256
	// idleTimeout is the interval of stopUnused: idle workers stop after one to two intervals.
	idleTimeout = 100 * time.Millisecond
)

// do runs w on a worker and does not wait for it.
func (p *workers) do(w task) {
	if idle := p.popIdle(); idle != nil {
		idle.tasks <- w
		return
	}
	go p.run(w)
}

func (p *workers) popIdle() *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	idle := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	p.unused = min(p.unused, last)
	return idle
}

// run runs a new worker until it is stopped.
func (p *workers) run(first task) {
	w := &worker{make(chan task, 1)}
	w.tasks <- first
	for w.runNext() && p.addIdle(w) {
	}
}

// runNext runs the next task, and retains no reference to it. It returns false once the worker
// is stopped.
func (w *worker) runNext() bool {
	next, ok := <-w.tasks
	if ok {
		next.run()
	}
	return ok
}

// addIdle adds a worker to the idle ones. It returns false if there are enough.
func (p *workers) addIdle(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == maxIdle {
		return false
	}
	p.idle = append(p.idle, w)
	if !p.stopScheduled {
		p.stopScheduled = true
		time.AfterFunc(idleTimeout, p.stopUnused)
	}
	return true
}

// stopUnused stops the workers that were idle throughout the last interval.
func (p *workers) stopUnused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	unused := p.idle[:p.unused]
	for _, idle := range unused {
		close(idle.tasks)
	}
	remaining := copy(p.idle, p.idle[p.unused:])
	clear(p.idle[remaining:])
	p.idle = p.idle[:remaining]
	p.unused = remaining
	if p.stopScheduled = remaining > 0; p.stopScheduled {
		time.AfterFunc(idleTimeout, p.stopUnused)
	}
}
