package nexttier

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// openStreams ends streams when the server shuts down: the API server waits for its watches, and
// only the proxy can end the forwarded ones. A single goroutine waits for the shutdown.
type openStreams struct {
	background context.Context
	running    *sync.WaitGroup

	mu      sync.Mutex
	open    map[*openStream]struct{}
	signals map[<-chan struct{}]struct{}
	closed  bool
}

type openStream struct {
	body      io.Closer
	endedHere atomic.Bool
}

func (s *openStream) end() {
	s.endedHere.Store(true)
	_ = s.body.Close()
}

func (o *openStreams) init(background context.Context, running *sync.WaitGroup) {
	o.background, o.running = background, running
	o.open, o.signals = map[*openStream]struct{}{}, map[<-chan struct{}]struct{}{}
}

// add registers a stream. The caller must remove it.
func (o *openStreams) add(ctx context.Context, body io.Closer) *openStream {
	s := &openStream{body: body}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		s.end()
		return s
	}
	o.open[s] = struct{}{}
	signal := apirequest.ServerShutdownSignalFrom(ctx)
	if signal == nil {
		return s
	}
	down := signal.ShuttingDown()
	if _, ok := o.signals[down]; !ok {
		o.signals[down] = struct{}{}
		o.running.Go(func() {
			select {
			case <-down:
				o.close()
			case <-o.background.Done():
			}
		})
	}
	return s
}

func (o *openStreams) remove(s *openStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, s)
}

// close ends all current and future streams.
func (o *openStreams) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for s := range o.open {
		s.end()
	}
}
