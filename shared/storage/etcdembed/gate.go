package etcdembed

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrClosed is returned by every call to a member that is closing or closed. Its code is that
// of a call on a closed gRPC connection, which etcd's client does not retry.
var ErrClosed = status.Error(codes.Canceled, "etcdembed: the member is closed")

// gate admits calls to a member until it is closed.
type gate struct {
	// Every call holds the read lock while it is in the member. close takes the write lock and
	// never releases it.
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

// enter reports whether a call may proceed. The caller must call leave afterwards. Only close
// takes the write lock, so TryRLock fails for no other reason.
func (g *gate) enter() bool { return g.mu.TryRLock() }

func (g *gate) leave() { g.mu.RUnlock() }

// close refuses further calls, ends the streams, and waits until the last call has left the
// member.
func (g *gate) close() {
	g.once.Do(func() {
		g.cancel()
		g.mu.Lock()
	})
}

// stream returns a context for a stream. It ends with ctx or when the gate closes.
func (g *gate) stream(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(g.closed, cancel)
	context.AfterFunc(ctx, func() { forget() })
	return ctx
}

// call calls method if the gate is open, and otherwise returns ErrClosed.
func call[Request, Response any](ctx context.Context, g *gate, method func(context.Context, Request) (Response, error), request Request) (Response, error) {
	if !g.enter() {
		var none Response
		return none, ErrClosed
	}
	defer g.leave()
	return method(ctx, request)
}
