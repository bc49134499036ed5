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
	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"golang.org/x/time/rate"
)

// watchDrain bounds the wait for watches to end when no grace period is
// configured. They are told to end at once; this is the time for their last
// bytes.
const watchDrain = 2 * time.Second

// lastTraces bounds the wait for whoever collects traces.
const lastTraces = 5 * time.Second

// preShutdownLimit bounds the pre-shutdown hooks, which call the API.
const preShutdownLimit = 5 * time.Second

// lifecycle is the signals of a server's end. Each is closed once.
type lifecycle struct {
	// prepared: routes and health checks are fixed.
	prepared chan struct{}
	// shuttingDown: the end has begun, readyz is red, requests are served.
	shuttingDown chan struct{}
	// notAccepting: no request is taken any more, watches end.
	notAccepting chan struct{}
	// drained: what was in flight has been answered, watches have ended.
	drained chan struct{}
	// muxComplete: all paths that the tier will ever own are known.
	muxComplete chan struct{}
	// muxPending are the signals muxComplete waits for.
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

// AwaitPaths makes unknown paths be answered 503 until done is closed, because a
// client that gets 404 concludes that what it looks for does not exist.
func (s *Server) AwaitPaths(done <-chan struct{}) {
	s.lifecycle.muxPending = append(s.lifecycle.muxPending, done)
}

// Prepared can run. It is made by Prepare.
type Prepared struct{ *Server }

// Prepare fixes routes and health checks. Nothing may be added afterwards. Call it
// once.
func (s *Server) Prepare() Prepared {
	s.discovery.install()
	s.installIndex()
	s.installHealth()
	s.installZPages()
	close(s.lifecycle.prepared)
	return Prepared{s}
}

// Run serves until ctx ends and everything in flight has been answered; then it
// returns nil. It returns an error as soon as the server cannot listen or a hook
// fails. Call it once.
func (s Prepared) Run(ctx context.Context) error {
	// Hooks, informers and probes outlive ctx until requests have drained.
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
	s.tellSystemd()

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
	s.sendTraces()
	s.table.Destroy()
	return err
}

// tellSystemd ends the start of a service of systemd with Type=notify. Of the tiers in a
// process it is the one that listens which does so.
func (s *Server) tellSystemd() {
	if s.config.Generic.SecureServing == nil {
		return
	}
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		klog.Background().Error(err, "tell systemd that the server has started")
	}
}

// sendTraces sends the spans that have not been sent yet. The tiers of a process share
// what does that, and it belongs to the one that listens.
func (s *Server) sendTraces() {
	g := s.config.Generic
	if g.SecureServing == nil || g.TracerProvider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastTraces)
	defer cancel()
	if err := g.TracerProvider.Shutdown(ctx); err != nil {
		klog.Background().Error(err, "send the last traces")
	}
}

// startAudit starts the audit backend, if there is one. The function it returns
// ends it and waits until every event has been delivered.
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

// listen serves in the group, if the server has a listener, and returns a channel that is
// closed when everything accepted has been answered after the end of accepting.
func (s *Server) listen(group *errgroup.Group) (<-chan struct{}, error) {
	stopped := make(chan struct{})
	serving := s.config.Generic.SecureServing
	if serving == nil {
		close(stopped)
		return stopped, nil
	}
	// With --shutdown-send-retry-after the server listens until everything in flight is
	// answered: whoever comes meanwhile is told to come back.
	end, timeout := s.lifecycle.notAccepting, watchDrain+s.config.Generic.RequestTimeout
	if s.config.Generic.ShutdownSendRetryAfter {
		end, timeout = s.lifecycle.drained, watchDrain
	}
	server, err := newHTTPServer(serving, s.config.HTTP2Server, s.handlers.Edge, end)
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return serve(server, serving.Listener) })
	go func() {
		defer close(stopped)
		shutDown(server, timeout, end)
	}()
	return stopped, nil
}

// completePaths closes muxComplete when every pending signal has come.
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

// shutdown ends the server in order; see the package documentation.
func (s *Server) shutdown(stopped <-chan struct{}) error {
	g := s.config.Generic
	log := klog.Background().WithValues("tier", s.config.Tier)
	close(s.lifecycle.shuttingDown)
	log.Info("shutting down", "delay", g.ShutdownDelayDuration)

	var wait sync.WaitGroup
	wait.Go(func() { time.Sleep(g.ShutdownDelayDuration) })
	err := s.hooks.stop(preShutdownLimit)
	wait.Wait()

	close(s.lifecycle.notAccepting)
	wait.Go(func() { g.NonLongRunningRequestWaitGroup.Wait() })
	wait.Go(func() { s.drainWatches(max(g.ShutdownWatchTerminationGracePeriod, watchDrain)) })
	wait.Wait()
	close(s.lifecycle.drained)
	// Everybody is answered; who does not close the connection does not delay the end.
	select {
	case <-stopped:
	case <-time.After(watchDrain):
		log.Info("connections cut off")
	}
	log.Info("drained")
	return err
}

// drainWatches waits for the watches to end, spreading their ends over the grace
// period so that their clients do not all come back at once.
func (s *Server) drainWatches(grace time.Duration) {
	_, _, err := s.config.Generic.WatchRequestWaitGroup.Wait(func(watches int) (utilwaitgroup.RateLimiter, context.Context, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		perSecond := max(float64(watches)/grace.Seconds(), 200)
		return rate.NewLimiter(rate.Limit(perSecond), 1), ctx, cancel
	})
	if err != nil {
		klog.Background().Info("watches cut off", "tier", s.config.Tier, "reason", err.Error())
	}
}

func isLongRunning(check apirequest.LongRunningRequestCheck, req *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	return ok && check(req, info)
}
