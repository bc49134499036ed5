package etcdembed

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrClosed is returned by every call to a member that is being closed or has been.
// Its code is that of a call on a closed gRPC connection, after which etcd's client
// does not try again.
var ErrClosed = status.Error(codes.Canceled, "etcdembed: the member is closed")

// gate lets calls into a member until it is closed.
type gate struct {
	// mu is read-locked by every call for as long as it is in the member, and
	// write-locked by close for good.
	mu     sync.RWMutex
	closed context.Context // done when close begins
	cancel context.CancelFunc
	once   sync.Once
}

func newGate() *gate {
	g := &gate{}
	g.closed, g.cancel = context.WithCancel(context.Background())
	return g
}

// enter reports whether a call may go on; the caller leaves when it has ended.
// Only close takes the write lock, so TryRLock fails for nothing else.
func (g *gate) enter() bool { return g.mu.TryRLock() }

func (g *gate) leave() { g.mu.RUnlock() }

// close refuses further calls, ends the streams, and returns when no call is in the
// member any more.
func (g *gate) close() {
	g.once.Do(func() {
		g.cancel()
		g.mu.Lock()
	})
}

// stream returns the context of a stream: it ends with ctx and with the gate.
func (g *gate) stream(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(g.closed, cancel)
	context.AfterFunc(ctx, func() { forget() })
	return ctx
}

// call makes one call of a service if the gate is open.
func call[Request, Response any](ctx context.Context, g *gate, method func(context.Context, Request) (Response, error), request Request) (Response, error) {
	if !g.enter() {
		var none Response
		return none, ErrClosed
	}
	defer g.leave()
	return method(ctx, request)
}
