package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// term is the state of an elected relay while its watch of etcd and its connection to NATS
// last. It belongs to one goroutine, except for the streams being opened in the background.
type term struct {
	*Relay
	elected     *election
	kv          *kv.Client
	feeds       []*feed
	byStream    map[string]*feed
	wake        chan struct{} // a publisher failed or has room
	openResults chan openResult
	background  sync.WaitGroup
	// configuring is a semaphore for creating and updating streams: NATS may promise the same
	// room to concurrent requests.
	configuring      chan struct{}
	progressRequests chan *feed
	health           chan streamHealth
	checkingHealth   bool

	watch        *kv.Stream // nil before the first stream is open
	stopWatch    context.CancelFunc
	head         int64     // revision up to which everything has come from etcd
	lastResponse time.Time // last time that etcd's watch responded
	cluster      uint64    // cluster ID of etcd, 0 before the first stream is open
	anchor       anchor
	lastAnchor   time.Time // last time that an anchor was written or tried
	lastUsable   time.Time // last time that a stream was usable
}

// serve runs one term and returns the reason for its end.
func (r *Relay) serve(ctx context.Context, e *election) error {
	// Acknowledgements lost with a connection do not arrive on the next one.
	lost := r.cfg.Conn.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer r.cfg.Conn.RemoveStatusListener(lost)
	t := newTerm(r, e)
	ctx, cancel := context.WithCancel(ctx)
	defer t.background.Wait()
	defer cancel()
	unsubscribe, err := t.listenForRequests()
	if err != nil {
		return err
	}
	defer unsubscribe()
	for _, f := range t.feeds {
		t.open(ctx, f)
	}
	err = t.loop(ctx, lost)
	if !r.hooks.killed {
		t.drain(ctx)
	}
	for _, f := range t.feeds {
		if f.open() {
			f.publisher.close()
		}
	}
	return err
}

func newTerm(r *Relay, e *election) *term {
	t := &term{
		Relay: r, elected: e, kv: kv.New(r.cfg.Etcd), byStream: map[string]*feed{},
		wake: make(chan struct{}, 1), openResults: make(chan openResult, len(r.cfg.Tiers)), configuring: make(chan struct{}, 1), progressRequests: make(chan *feed, len(r.cfg.Tiers)),
		health: make(chan streamHealth, len(r.cfg.Tiers)), stopWatch: func() {}, lastUsable: time.Now(),
	}
	for _, tier := range r.cfg.Tiers {
		f := &feed{name: r.cfg.Routes.Stream(tier), tier: tier}
		t.feeds = append(t.feeds, f)
		t.byStream[f.name] = f
	}
	return t
}

// loop publishes the changes of etcd until the connection to NATS or the watch of etcd is lost.
func (t *term) loop(ctx context.Context, lost <-chan nats.Status) error {
	defer func() { t.stopWatch() }()
	tick := time.NewTicker(t.cfg.ProgressInterval / 2)
	defer tick.Stop()
	// etcd ignores requests for progress while its watcher catches up, so they are repeated
	// until it answers.
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		var events <-chan kv.Response
		if t.watch != nil && !t.full() {
			events = t.watch.C()
		}
		select {
		case resp, ok := <-events:
			if !ok {
				return errors.New("watch ended")
			}
			if err := t.onEtcd(ctx, resp); err != nil {
				return err
			}
		case o := <-t.openResults:
			if err := t.onOpened(ctx, o); err != nil {
				return err
			}
			again.Reset(0)
		case <-t.wake:
			t.flushAll(ctx)
		case f := <-t.progressRequests:
			if f.open() {
				f.progressWanted = true
				again.Reset(0)
			}
		case c := <-t.health:
			t.onHealth(c)
		case <-tick.C:
			if err := t.onTick(ctx, again); err != nil {
				return err
			}
		case <-again.C:
			if t.watch == nil || !t.anyProgressWanted() {
				continue
			}
			if err := t.kv.RequestProgress(ctx); err != nil {
				return fmt.Errorf("request progress: %w", err)
			}
			again.Reset(30 * time.Millisecond)
		case <-lost:
			return errConnectionLost
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// full reports whether a stream must send before the relay reads more from etcd.
func (t *term) full() bool {
	for _, f := range t.feeds {
		if f.open() && f.full() {
			return true
		}
	}
	return false
}

// onTick does everything that is due by time.
func (t *term) onTick(ctx context.Context, again *time.Timer) error {
	now := time.Now()
	if t.watch != nil && !t.full() && now.Sub(t.lastResponse) >= max(3*time.Second, 5*t.cfg.ProgressInterval) {
		if err := t.diagnoseSilence(ctx); err != nil {
			return err
		}
	}
	anchorWritten := false
	if t.anchorDue() {
		var err error
		if anchorWritten, err = t.writeAnchor(ctx); err != nil {
			return err
		}
	}
	healthy := false
	for _, f := range t.feeds {
		if !f.open() {
			continue
		}
		f.publisher.expire(now)
		healthy = healthy || f.outage.since.IsZero()
		t.renewFence(f)
		if !f.batchRefusedAt.IsZero() && now.Sub(f.batchRefusedAt) >= time.Minute {
			if f.batchRefusedAt = (time.Time{}); f.limits == single {
				f.limits = batched
			}
		}
		switch {
		case !anchorWritten && now.Sub(f.lastQueued) < t.cfg.ProgressInterval*3/4:
		case f.complete >= t.head:
			f.progressWanted = true
			again.Reset(0)
		default:
			t.progress(f, t.head)
		}
	}
	if healthy {
		t.lastUsable = now
	} else if now.Sub(t.lastUsable) >= 2*t.cfg.StreamPatience+t.cfg.AckTimeout {
		return t.noUsableStream()
	}
	t.checkHealth(ctx)
	t.flushAll(ctx)
	return nil
}

var (
	errReplaced = errors.New("history of etcd was replaced")
	errSilent   = errors.New("watch of etcd is silent")
)

// diagnoseSilence finds out why the watch is silent although the relay requests progress in
// each ProgressInterval. After a restore from a backup, etcd's client continues to watch from a
// revision in the future.
func (t *term) diagnoseSilence(ctx context.Context) error {
	reqCtx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	now, err := currentPosition(reqCtx, t.cfg.Etcd, t.cfg.Routes.Prefix())
	switch {
	case err != nil:
		return err
	case now.revision < t.head || now.cluster != t.cluster:
		t.markReplaced()
		return errReplaced
	}
	return errSilent
}

// anchorDue reports whether it is time for another anchor and etcd has changed since the last
// one.
func (t *term) anchorDue() bool {
	return t.watch != nil && time.Since(t.lastAnchor) >= anchorInterval && (t.anchor.Revision == 0 || t.head > t.anchor.Revision)
}

// writeAnchor writes an anchor and reports whether it did. It returns an error only if the
// relay cannot continue.
func (t *term) writeAnchor(ctx context.Context) (bool, error) {
	t.lastAnchor = time.Now()
	reqCtx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	next, err := t.anchor.write(reqCtx, t.elected, t.cfg.StatePrefix)
	switch {
	case errors.Is(err, errReplaced):
		t.markReplaced()
		return false, err
	case errors.Is(err, errDeposed):
		return false, err
	case err != nil:
		klog.FromContext(ctx).V(2).Info("cannot write an anchor of the event log", "err", err)
		return false, nil
	}
	t.anchor = next
	return true, nil
}

// drain waits briefly for outstanding acknowledgements, so that a successor need not read the
// end of the streams twice. The fence handles messages that arrive later.
func (t *term) drain(ctx context.Context) {
	deadline := time.Now().Add(drainTimeout)
	for _, f := range t.feeds {
		for f.open() && time.Now().Before(deadline) {
			if units, _, err := f.publisher.inFlight(); units == 0 || err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// listenForRequests subscribes to the readers' requests for progress.
func (t *term) listenForRequests() (stop func(), err error) {
	var subs []*nats.Subscription
	stop = func() {
		for _, s := range subs {
			_ = s.Unsubscribe()
		}
	}
	for _, f := range t.feeds {
		sub, err := t.cfg.Conn.Subscribe(f.name+progressRequestSubject, func(*nats.Msg) {
			select {
			case t.progressRequests <- f:
			default: // enough requests are pending
			}
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("subscribe to requests for progress: %w", err)
		}
		subs = append(subs, sub)
	}
	return stop, nil
}

func (t *term) anyProgressWanted() bool {
	for _, f := range t.feeds {
		if f.open() && f.progressWanted {
			return true
		}
	}
	return false
}

// noUsableStream returns the reasons why no stream is usable.
func (t *term) noUsableStream() error {
	errs := []error{errNoUsableStream}
	for _, f := range t.feeds {
		if f.outage.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.name, f.outage.err))
		}
	}
	return errors.Join(errs...)
}
