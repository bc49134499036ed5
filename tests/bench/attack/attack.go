package attack

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"
)

// Site is what is attacked.
type Site struct {
	// Addr is its host and port.
	Addr string
	// TLS has the roots that verify it.
	TLS *tls.Config
	// Nobody is the token of a user with the rights that everybody has.
	Nobody string
}

// Attack is something that clients do to a server.
type Attack struct {
	// Patterns select attacks by Name; tables show Title.
	Name, Title string
	// perSecond is how often the attack is made by a few clients in turn; 0 is once by each.
	perSecond float64
	// clients is how many there are.
	clients int
	// client makes the i-th client.
	client func(s *Site, i int) client
}

// client is one attacker. Its methods are for one goroutine, but for close.
type client interface {
	// attack attacks for the i-th time, over all clients, and returns nil if the server
	// has taken it as far as the attack goes. After an error it begins anew.
	attack(ctx context.Context, i int) error
	// close ends what the client holds open.
	close()
}

// Running is an attack that is under way.
type Running struct {
	stop    context.CancelFunc
	clients sync.WaitGroup
	taken   atomic.Int64
}

// Start begins the attack. It returns when each client has made its first attempt, if it
// makes only one, and lasts until Stop. The caller stops it.
func (a Attack) Start(ctx context.Context, site *Site) *Running {
	ctx, stop := context.WithCancel(ctx)
	r := &Running{stop: stop}
	begin := time.Now()
	var next atomic.Int64
	var first sync.WaitGroup
	// Handshakes of hundreds of clients at once would be an attack by itself.
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

// Stop ends the attack and returns how often it was made and not cut off.
func (r *Running) Stop() int {
	r.stop()
	r.clients.Wait()
	return int(r.taken.Load())
}
