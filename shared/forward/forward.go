// Package forward passes TCP connections on to the replicas behind a name, bytes
// as they are: what a load balancer does in front of several aggregators where
// there is none. TLS stays between the client and the replica.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// dialTimeout is how long one replica has to accept before the next one is tried.
const dialTimeout = 2 * time.Second

// patience is how long a replica may leave unacknowledged what was sent to it. Then
// its connections are closed, and their clients open others: client-go would take 45 s
// to notice.
const patience = 5 * time.Second

// Forwarder passes on what a listener accepts.
type Forwarder struct {
	// Listener is closed by Run.
	Listener net.Listener
	// Backends are host:port. A host that resolves to several addresses stands for
	// as many replicas; it is resolved for every connection, so that replicas
	// which come and go are noticed at once.
	Backends []string

	next  atomic.Uint64
	conns sync.WaitGroup
}

// Run passes connections on until ctx ends, which is no error. Then nothing more
// is accepted, the connections that are open are closed, and Run returns when the
// last of them is gone: clients of a Kubernetes API open another one.
func (f *Forwarder) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer f.conns.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { f.Listener.Close() })
	defer stop()
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		f.conns.Go(func() { f.serve(ctx, conn) })
	}
}

func (f *Forwarder) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	backend, err := f.dial(ctx)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "no backend accepts the connection", "client", client.RemoteAddr().String())
		}
		return
	}
	defer backend.Close()
	stop := context.AfterFunc(ctx, func() { client.Close(); backend.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { pass(backend, client) })
	both.Go(func() { pass(client, backend) })
	both.Wait()
}

// dial connects to the next replica that accepts.
func (f *Forwarder) dial(ctx context.Context) (net.Conn, error) {
	addresses, err := f.resolve(ctx)
	start := f.next.Add(1)
	errs := []error{err}
	dialer := net.Dialer{
		Timeout: dialTimeout, Control: giveUp,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: patience, Interval: time.Second, Count: 3},
	}
	for i := range uint64(len(addresses)) {
		conn, err := dialer.DialContext(ctx, "tcp", addresses[(start+i)%uint64(len(addresses))])
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// resolve returns the addresses of all backends that have any. An error comes
// with what could be resolved.
func (f *Forwarder) resolve(ctx context.Context) ([]string, error) {
	var all []string
	var errs []error
	for _, backend := range f.Backends {
		host, port, err := net.SplitHostPort(backend)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, ip := range ips {
			all = append(all, net.JoinHostPort(ip, port))
		}
	}
	return all, errors.Join(errs...)
}

// pass copies until src ends and hands the end on: a half-closed connection stays
// half-closed, a broken one breaks on both sides.
func pass(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if tcp, ok := dst.(*net.TCPConn); ok && err == nil && tcp.CloseWrite() == nil {
		return
	}
	dst.Close()
	src.Close()
}
