package h2

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

type workFunc func()

func (f workFunc) run() { f() }

// Idle workers wait for tasks, no more than allowed, and stop when they are not used.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p workers
		idle := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.idle) != want {
				t.Errorf("%s: %d workers are idle, want %d", when, len(p.idle), want)
			}
		}
		gate := make(chan struct{})
		do := func(n int) {
			ended := make(chan struct{}, n)
			for range n {
				p.do(workFunc(func() {
					<-gate
					ended <- struct{}{}
				}))
			}
			for range n {
				gate <- struct{}{}
			}
			for range n {
				<-ended
			}
		}
		do(1)
		idle("after the first", 1)
		do(1)
		idle("the second is the first's", 1)
		do(3)
		idle("three at once", 3)
		p.do(workFunc(runtime.Goexit))
		idle("one has left", 2)
		time.Sleep(idleTimeout + idleTimeout/2)
		do(1)
		time.Sleep(idleTimeout)
		idle("one was needed", 1)
		time.Sleep(2 * idleTimeout)
		idle("none was needed", 0)
		do(maxIdle + 40)
		idle("many at once", maxIdle)
		time.Sleep(3 * idleTimeout)
		idle("the end", 0)
	})
}
