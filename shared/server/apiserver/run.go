package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

// watchDrainTimeout bounds the wait for watches to end if no grace period is configured.
// They end at once; this is the time to send their last bytes.
const watchDrainTimeout = 2 * time.Second

// traceFlushTimeout bounds the wait for the collector of traces.
const traceFlushTimeout = 5 * time.Second

// preShutdownTimeout bounds the pre-shutdown hooks, which call the API.
const preShutdownTimeout = 5 * time.Second

// lifecycle holds the signals of a server's life. Each channel is closed once.
type lifecycle struct {
	// prepared is closed when routes and health checks are fixed.
	prepared chan struct{}
	// shuttingDown is closed when the shutdown begins: readyz fails, requests are served.
	shuttingDown chan struct{}
	// notAccepting is closed when no more requests are accepted, and watches end.
	notAccepting chan struct{}
	// drained is closed when no request and no watch is in flight any more.
	drained chan struct{}
	// muxComplete is closed when all paths that the tier will ever own are known.
	muxComplete chan struct{}
	// muxPending are the signals that muxComplete waits for.
	muxPending []<-chan struct{}
}

func newLifecycle() *lifecycle {
	return &lifecycle{
		prepared:     make(chan struct{}),
		shuttingDown: make(chan struct{}),
		notAccepting: make(chan struct{}),
		drained:      make(chan struct{}),
		muxComplete:  make(chan struct{}),
	}
}

// AwaitPaths makes the server answer 503 for unknown paths until done is closed, because a
// client takes 404 as a proof that an object does not exist.
func (s *Server) AwaitPaths(done <-chan struct{}) {
	s.lifecycle.muxPending = append(s.lifecycle.muxPending, done)
}

// Prepared is a server that is ready to run. Prepare makes it.
type Prepared struct{ *Server }

// Prepare fixes routes, health checks and hooks. Nothing may be added afterwards. Call it
// once.
func (s *Server) Prepare() Prepared {
	s.discovery.install()
	s.installIndex()
	s.installHealth()
	s.installZPages()
	close(s.lifecycle.prepared)
	return Prepared{s}
}

// Run serves until ctx is cancelled and all requests in flight have been answered; then it
// returns nil. If the server cannot listen or a hook fails, it shuts down and returns the
// error. Call it once.
func (s Prepared) Run(ctx context.Context) error {
	// Hooks, informers and probes run until requests have drained.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(background)

	stopAudit, err := s.startAudit()
	if err != nil {
		return err
	}
	stopped, err := s.listen(group)
	if err != nil {
		stopAudit()
		return err
	}
	group.Go(func() error { s.completePaths(failed); return nil })
	if next := s.config.Next; next != nil && next.Run != nil {
		group.Go(func() error { return next.Run(failed) })
	}
	if socket := s.debugSocket(); socket != nil {
		group.Go(func() error { return socket(failed) })
	}
	s.hooks.start(failed, group)
	s.notifySystemd()

	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	err = s.shutdown(stopped)
	stopAudit()
	stop()
	if failure := group.Wait(); failure != nil && !errors.Is(failure, context.Canceled) {
		err = errors.Join(failure, err)
	}
	s.flushTraces()
	s.table.Destroy()
	return err
}

// notifySystemd reports the start to systemd, for services with Type=notify. Of several tiers
// in a process, only the one that listens does so.
func (s *Server) notifySystemd() {
	if s.config.Generic.SecureServing == nil {
		return
	}
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		klog.Background().Error(err, "notify systemd of the start")
	}
}

// flushTraces sends the remaining spans. The tiers of a process share the tracer provider,
// and the tier that listens owns it.
func (s *Server) flushTraces() {
	g := s.config.Generic
	if g.SecureServing == nil || g.TracerProvider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceFlushTimeout)
	defer cancel()
	if err := g.TracerProvider.Shutdown(ctx); err != nil {
		klog.Background().Error(err, "send the last traces")
	}
}

// startAudit starts the audit backend, if there is one. The returned function stops it and
// waits until every event has been delivered.
func (s *Server) startAudit() (stop func(), err error) {
	backend := s.config.Generic.AuditBackend
	if backend == nil {
		return func() {}, nil
	}
	done := make(chan struct{})
	if err := backend.Run(done); err != nil {
		return nil, fmt.Errorf("audit backend: %w", err)
	}
	return func() {
		close(done)
		backend.Shutdown()
	}, nil
}

// listen serves in the group, if the server has a listener. It returns a channel that is
// closed when the HTTP server has shut down.
func (s *Server) listen(group *errgroup.Group) (<-chan struct{}, error) {
	stopped := make(chan struct{})
	serving := s.config.Generic.SecureServing
	if serving == nil {
		close(stopped)
		return stopped, nil
	}
	// With --shutdown-send-retry-after the server listens until all requests in flight are
	// answered, and answers new ones with Retry-After.
	end, timeout := s.lifecycle.notAccepting, watchDrainTimeout+s.config.Generic.RequestTimeout
	if s.config.Generic.ShutdownSendRetryAfter {
		end, timeout = s.lifecycle.drained, watchDrainTimeout
	}
	server, err := newHTTPServer(serving, s.config.HTTP2Server, s.handlers.Edge, end)
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return serve(server, serving.Listener) })
	var shutdowns sync.WaitGroup
	shutdowns.Go(func() {
		<-end
		s.logShutdown("HTTPServerStoppedListening")
		shutdownAfter(end, server, timeout)
	})
	if listener := s.config.Unsecured; listener != nil {
		unsecured := newUnsecuredServer(listener, s.afterPrepare(s.handlers.Unsecured))
		group.Go(func() error { return serveUnsecured(unsecured, listener) })
		shutdowns.Go(func() { shutdownAfter(end, unsecured, timeout) })
	}
	go func() {
		defer close(stopped)
		shutdowns.Wait()
	}()
	return stopped, nil
}

// completePaths closes muxComplete after all pending signals.
func (s *Server) completePaths(ctx context.Context) {
	for _, pending := range s.lifecycle.muxPending {
		select {
		case <-pending:
		case <-ctx.Done():
			return
		}
	}
	close(s.lifecycle.muxComplete)
}

// shutdown shuts the server down in the order of the package documentation.
func (s *Server) shutdown(stopped <-chan struct{}) error {
	g := s.config.Generic
	log := klog.Background().WithValues("tier", s.config.Tier)
	close(s.lifecycle.shuttingDown)
	log.Info("shutting down", "delay", g.ShutdownDelayDuration)
	s.logShutdown("ShutdownInitiated")

	var wait sync.WaitGroup
	wait.Go(func() {
		time.Sleep(g.ShutdownDelayDuration)
		s.logShutdown("AfterShutdownDelayDuration")
	})
	err := s.hooks.stop(preShutdownTimeout)
	if g.SecureServing != nil {
		klog.V(1).InfoS("[graceful-termination] pre-shutdown hooks completed", "name", "PreShutdownHooksStopped")
	}
	wait.Wait()

	s.logShutdown("NotAcceptingNewRequest")
	close(s.lifecycle.notAccepting)
	wait.Go(func() { g.NonLongRunningRequestWaitGroup.Wait() })
	wait.Go(func() { s.drainWatches(max(g.ShutdownWatchTerminationGracePeriod, watchDrainTimeout)) })
	wait.Wait()
	s.logShutdown("InFlightRequestsDrained")
	close(s.lifecycle.drained)
	// All requests are answered. A client that keeps its connection open does not delay the
	// shutdown.
	select {
	case <-stopped:
	case <-time.After(watchDrainTimeout):
		log.Info("closed open connections")
	}
	log.Info("drained")
	return err
}

// logShutdown logs a phase of the shutdown under kube-apiserver's name of its event, before
// anything else learns of the phase and logs the next. Of several tiers in a process, only the
// one that listens does so.
func (s *Server) logShutdown(event string) {
	if s.config.Generic.SecureServing != nil {
		klog.V(1).InfoS("[graceful-termination] shutdown event", "name", event)
	}
}

// drainWatches waits for the watches to end. It spreads their ends over the grace period, so
// that their clients do not all reconnect at once.
func (s *Server) drainWatches(grace time.Duration) {
	_, _, err := s.config.Generic.WatchRequestWaitGroup.Wait(func(watches int) (utilwaitgroup.RateLimiter, context.Context, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		perSecond := max(float64(watches)/grace.Seconds(), 200)
		return rate.NewLimiter(rate.Limit(perSecond), 1), ctx, cancel
	})
	if err != nil {
		klog.Background().Info("watches did not end in time", "tier", s.config.Tier, "reason", err.Error())
	}
}

func isLongRunning(check apirequest.LongRunningRequestCheck, req *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	return ok && check(req, info)
}
