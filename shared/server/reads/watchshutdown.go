package reads

import (
	"sync"

	"triune.dev/shared/storage/keywatch"
)

// shutdownWatchers wake the watches of a server that shuts down. Watches with the same
// signal share the goroutine that waits for it, which ends with the last one.
type shutdownWatchers struct {
	mu sync.Mutex
	// groups are the watches by signal. Guarded by mu, as are the groups.
	groups map[<-chan struct{}]*shutdownGroup
}

type shutdownGroup struct {
	watches map[*keywatch.Watch]struct{}
	left    chan struct{}
}

func (c *shutdownWatchers) join(signal <-chan struct{}, w *keywatch.Watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[signal]
	if g == nil {
		g = &shutdownGroup{watches: map[*keywatch.Watch]struct{}{}, left: make(chan struct{})}
		if c.groups == nil {
			c.groups = map[<-chan struct{}]*shutdownGroup{}
		}
		c.groups[signal] = g
		go c.wait(signal, g)
	}
	g.watches[w] = struct{}{}
	select {
	case <-signal: // the waiting goroutine may have ended
		w.Wake()
	default:
	}
}

func (c *shutdownWatchers) leave(signal <-chan struct{}, w *keywatch.Watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[signal]
	delete(g.watches, w)
	if len(g.watches) == 0 {
		delete(c.groups, signal)
		close(g.left)
	}
}

func (c *shutdownWatchers) wait(signal <-chan struct{}, g *shutdownGroup) {
	select {
	case <-g.left:
		return
	case <-signal:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range g.watches {
		w.Wake()
	}
}
