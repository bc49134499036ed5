package attack

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"
)

// Site is the target of an attack.
type Site struct {
	// Addr is its host and port.
	Addr string
	// TLS has the roots that verify it.
	TLS *tls.Config
	// Nobody is the token of a user with the default permissions.
	Nobody string
}

// Attack is an attack by clients on a server.
type Attack struct {
	// Patterns select attacks by Name; tables show Title.
	Name, Title string
	// perSecond is the rate of attacks by a few clients in turn; 0 means once by each.
	perSecond float64
	// clients is the number of clients.
	clients int
	// client returns the i-th client.
	client func(s *Site, i int) client
}

// client is an attacker. Its methods must not be called concurrently, except for close.
type client interface {
	// attack makes the i-th attack of all clients. It returns nil if the server has
	// accepted it as far as the attack goes. After an error it starts again.
	attack(ctx context.Context, i int) error
	// close closes the client's connections.
	close()
}

// Running is a running attack.
type Running struct {
	stop    context.CancelFunc
	clients sync.WaitGroup
	taken   atomic.Int64
}

// Start starts the attack, which lasts until Stop. If each client attacks once, Start
// returns after all have.
func (a Attack) Start(ctx context.Context, site *Site) *Running {
	ctx, stop := context.WithCancel(ctx)
	r := &Running{stop: stop}
	begin := time.Now()
	var next atomic.Int64
	var first sync.WaitGroup
	// Concurrent handshakes of hundreds of clients would be an attack of their own.
	dialing := make(chan struct{}, 16)
	for i := range a.clients {
		c := a.client(site, i)
		if a.perSecond == 0 {
			first.Add(1)
		}
		r.clients.Go(func() {
			defer c.close()
			if a.perSecond == 0 {
				dialing <- struct{}{}
				r.count(c.attack(ctx, i))
				<-dialing
				first.Done()
				<-ctx.Done()
				return
			}
			for {
				i := int(next.Add(1) - 1)
				due := begin.Add(time.Duration(float64(i) / a.perSecond * float64(time.Second)))
				select {
				case <-time.After(time.Until(due)):
				case <-ctx.Done():
					return
				}
				r.count(c.attack(ctx, i))
			}
		})
	}
	first.Wait()
	return r
}

func (r *Running) count(err error) {
	if err == nil {
		r.taken.Add(1)
	}
}

// Stop ends the attack and returns the number of attacks that were not interrupted.
func (r *Running) Stop() int {
	r.stop()
	r.clients.Wait()
	return int(r.taken.Load())
}
