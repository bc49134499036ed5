package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Balancer forwards TCP connections unchanged to several backends in turn, so TLS is
// between the client and the backend. A backend that does not accept is skipped. It stands
// in front of several aggregators.
type Balancer struct {
	listener net.Listener
	backends []string
	next     atomic.Uint64
	done     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// NewBalancer listens on a free loopback port until Close.
func NewBalancer(backends []string) (*Balancer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return nil, fmt.Errorf("start balancer: %w", err)
	}
	b := &Balancer{listener: l, backends: backends, conns: map[net.Conn]struct{}{}}
	b.done.Go(b.accept)
	return b, nil
}

// Addr is the host and port to connect to.
func (b *Balancer) Addr() string { return b.listener.Addr().String() }

// Cut closes every open connection on both sides, like a broken network. New connections
// are accepted.
func (b *Balancer) Cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		c.Close()
	}
}

// Close stops listening, cuts all connections and waits for them.
func (b *Balancer) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.listener.Close()
	b.Cut()
	b.done.Wait()
}

func (b *Balancer) accept() {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.done.Go(func() { b.serve(c) })
	}
}

func (b *Balancer) serve(client net.Conn) {
	defer client.Close()
	backend, err := b.dial()
	if err != nil {
		return
	}
	defer backend.Close()
	if !b.track(client, backend) {
		return
	}
	defer b.forget(client, backend)
	var both sync.WaitGroup
	both.Go(func() { pipe(backend, client) })
	both.Go(func() { pipe(client, backend) })
	both.Wait()
}

func (b *Balancer) dial() (net.Conn, error) {
	start := b.next.Add(1)
	var errs []error
	for i := range uint64(len(b.backends)) {
		c, err := net.Dial("tcp", b.backends[(start+i)%uint64(len(b.backends))])
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (b *Balancer) track(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		b.conns[c] = struct{}{}
	}
	return !b.closed
}

func (b *Balancer) forget(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		delete(b.conns, c)
	}
}

// pipe copies until src ends and passes the end on: a half-closed connection stays
// half-closed.
func pipe(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if tcp, ok := dst.(*net.TCPConn); ok && err == nil {
		_ = tcp.CloseWrite()
		return
	}
	dst.Close()
	src.Close()
}
