package reads

import (
	"sync"

	"triune.dev/shared/etcdstore"
)

// closing wakes up the watches of a server that shuts down. All watches with the
// same signal share the goroutine that waits for it, which ends with the last one.
type closing struct {
	mu sync.Mutex
	// groups by the signal; guarded by mu, as is what is in them.
	groups map[<-chan struct{}]*closingGroup
}

type closingGroup struct {
	watches map[*etcdstore.Following]struct{}
	left    chan struct{}
}

func (c *closing) join(signal <-chan struct{}, f *etcdstore.Following) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[signal]
	if g == nil {
		g = &closingGroup{watches: map[*etcdstore.Following]struct{}{}, left: make(chan struct{})}
		if c.groups == nil {
			c.groups = map[<-chan struct{}]*closingGroup{}
		}
		c.groups[signal] = g
		go c.wait(signal, g)
	}
	g.watches[f] = struct{}{}
	select {
	case <-signal: // whoever waited for it may be gone
		f.Poke()
	default:
	}
}

func (c *closing) leave(signal <-chan struct{}, f *etcdstore.Following) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[signal]
	delete(g.watches, f)
	if len(g.watches) == 0 {
		delete(c.groups, signal)
		close(g.left)
	}
}

func (c *closing) wait(signal <-chan struct{}, g *closingGroup) {
	select {
	case <-g.left:
		return
	case <-signal:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range g.watches {
		f.Poke()
	}
}
