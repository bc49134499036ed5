package filters

import (
	"context"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/server/shutdown"
)

// shutdownSignal is the signal that ends watches.
type shutdownSignal <-chan struct{}

var _ apirequest.ServerShutdownSignal = shutdownSignal(nil)

// ShuttingDown implements apirequest.ServerShutdownSignal.
func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// cancels holds the contexts of EndWithServer.
var cancels = shutdown.New(func(cancel *context.CancelFunc) { (*cancel)() })

// EndWithServer returns a copy of ctx that is also cancelled by the shutdown signal in
// ctx. It is for requests that are passed on, because the tiers behind do not see that
// signal. The caller must call the returned function.
func EndWithServer(ctx context.Context) (context.Context, context.CancelFunc) {
	signal := apirequest.ServerShutdownSignalFrom(ctx)
	ctx, cancel := context.WithCancel(ctx)
	if signal == nil {
		return ctx, cancel
	}
	cancels.Add(signal.ShuttingDown(), &cancel)
	return ctx, func() {
		cancels.Remove(signal.ShuttingDown(), &cancel)
		cancel()
	}
}
