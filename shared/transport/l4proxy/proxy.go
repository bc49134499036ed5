// Package l4proxy forwards TCP connections to the replicas behind a name, byte by byte. A
// [Forwarder] replaces a load balancer in front of several aggregators. TLS stays between
// client and replica.
package l4proxy

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

// dialTimeout is how long one replica may take to accept before the next one is tried.
const dialTimeout = 2 * time.Second

// ackTimeout is how long a replica may leave sent data unacknowledged. Then its connections are
// closed, so that their clients open others; client-go alone would take 45 s to notice.
const ackTimeout = 5 * time.Second

// Forwarder forwards the connections that a listener accepts.
type Forwarder struct {
	// Listener accepts the connections. Run closes it.
	Listener net.Listener
	// Backends are of the form host:port. A host that resolves to several addresses stands for
	// as many replicas. It is resolved for every connection, so that changes of the replicas
	// take effect immediately.
	Backends []string

	next  atomic.Uint64
	conns sync.WaitGroup
}

// Run forwards connections until ctx ends, and then returns nil. It stops accepting, closes the
// open connections and waits for them; clients of a Kubernetes API reconnect.
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
	both.Go(func() { pipe(backend, client) })
	both.Go(func() { pipe(client, backend) })
	both.Wait()
}

// dial connects to the next replica that accepts, in turn.
func (f *Forwarder) dial(ctx context.Context) (net.Conn, error) {
	addresses, err := f.resolve(ctx)
	start := f.next.Add(1)
	errs := []error{err}
	dialer := net.Dialer{
		Timeout: dialTimeout, Control: setUserTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: ackTimeout, Interval: time.Second, Count: 3},
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

// resolve returns the addresses of all backends that resolve, and the errors of the others.
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

// pipe copies from src to dst until src ends, and passes the end on: a half-closed connection
// stays half-closed, and a broken one breaks on both sides.
func pipe(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if tcp, ok := dst.(*net.TCPConn); ok && err == nil && tcp.CloseWrite() == nil {
		return
	}
	dst.Close()
	src.Close()
}
