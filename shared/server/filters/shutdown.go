package filters

import (
	"context"
	"sync"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// shutdownSignal is the signal that ends watches.
type shutdownSignal <-chan struct{}

var _ apirequest.ServerShutdownSignal = shutdownSignal(nil)

// ShuttingDown implements apirequest.ServerShutdownSignal.
func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// EndWithServer returns a copy of ctx that is also cancelled by the shutdown signal in
// ctx. It is for requests that are passed on, because the tiers behind do not see that
// signal. The caller must call the returned function.
func EndWithServer(ctx context.Context) (context.Context, context.CancelFunc) {
	signal := apirequest.ServerShutdownSignalFrom(ctx)
	ctx, cancel := context.WithCancel(ctx)
	if signal == nil {
		return ctx, cancel
	}
	stop := shutdowns.afterFunc(signal.ShuttingDown(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// shutdowns cancels the contexts of EndWithServer.
var shutdowns signalWaiters

// signalWaiters calls functions after a signal. All functions for the same signal share
// one goroutine, which exits with the last of them. The zero value is ready.
type signalWaiters struct {
	mu     sync.Mutex                           // guards groups and what they hold
	groups map[<-chan struct{}]*signalWaitGroup // by signal
}

type signalWaitGroup struct {
	calls map[*context.CancelFunc]struct{}
	empty chan struct{} // closed when the last call is stopped
}

// afterFunc calls a function after the signal. The caller must call stop, which does not
// block.
func (s *signalWaiters) afterFunc(signal <-chan struct{}, call context.CancelFunc) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[signal]
	if g == nil {
		g = &signalWaitGroup{calls: map[*context.CancelFunc]struct{}{}, empty: make(chan struct{})}
		if s.groups == nil {
			s.groups = map[<-chan struct{}]*signalWaitGroup{}
		}
		s.groups[signal] = g
		go s.wait(signal, g)
	}
	key := &call
	g.calls[key] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(g.calls, key)
		if len(g.calls) == 0 && s.groups[signal] == g {
			delete(s.groups, signal)
			close(g.empty)
		}
	}
}

func (s *signalWaiters) wait(signal <-chan struct{}, g *signalWaitGroup) {
	select {
	case <-g.empty:
		return
	case <-signal:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, signal) // later calls get a goroutine of their own
	for call := range g.calls {
		(*call)()
	}
}
