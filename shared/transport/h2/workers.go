package h2

import (
	"sync"
	"time"
)

// workers run the handlers of streams. A goroutine that is new begins with a small stack,
// which is copied to a larger one while a request goes through its handler, and given back
// when it is answered; so those that have run one wait for another. The zero value is ready.
type workers struct {
	mu sync.Mutex
	// idle wait for work, who worked last at the end; guarded by mu, as is all below.
	idle []*worker
	// unused is how many of idle nobody has needed since the last look.
	unused        int
	stopScheduled bool
}

// worker is a goroutine that works, or waits for work.
type worker struct{ tasks chan task }

// work is what a worker does: it runs to its end.
type task interface{ run() }

const (
	// maxIdle workers wait; a stack that is not used is halved by each collection of
	// garbage.
	maxIdle = 256
	// idleTime is how long a worker waits at least, and at most twice as long: a server
	// that stops has none soon.
	idleTimeout = 100 * time.Millisecond
)

// do has some worker do the work, and does not wait for it.
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

// begin is what a new worker does.
func (p *workers) run(first task) {
	own := &worker{make(chan task, 1)}
	own.tasks <- first
	for own.runNext() && p.addIdle(own) {
	}
}

// one does the next work, of which nothing is held afterwards. It returns false if there is
// none to come.
func (w *worker) runNext() bool {
	next, ok := <-w.tasks
	if ok {
		next.run()
	}
	return ok
}

// wait puts a worker among the idle ones. It returns false if there are enough.
func (p *workers) addIdle(own *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == maxIdle {
		return false
	}
	p.idle = append(p.idle, own)
	if !p.stopScheduled {
		p.stopScheduled = true
		time.AfterFunc(idleTimeout, p.stopUnused)
	}
	return true
}

// look sends home the workers that were idle all the time since the last look.
func (p *workers) stopUnused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	home := p.idle[:p.unused]
	for _, idle := range home {
		close(idle.tasks)
	}
	kept := copy(p.idle, p.idle[p.unused:])
	clear(p.idle[kept:])
	p.idle = p.idle[:kept]
	p.unused = kept
	if p.stopScheduled = kept > 0; p.stopScheduled {
		time.AfterFunc(idleTimeout, p.stopUnused)
	}
}
