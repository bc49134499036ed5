package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"

	"triune.dev/shared/etcdstore/kv"
)

// term is the work of an elected relay while it has its watch of etcd and its
// connection to NATS. It runs on one goroutine; streams are opened beside it.
type term struct {
	*Relay
	elected  *election
	kv       *kv.Client
	feeds    []*feed
	byStream map[string]*feed
	wake     chan struct{} // a publisher has failed, or has room
	opened   chan opened
	opening  sync.WaitGroup
	// fitting is held by the one that makes or changes a stream: NATS may promise the
	// same room to several who ask at the same time.
	fitting  chan struct{}
	ask      chan *feed
	checked  chan checked
	checking bool

	watch     *kv.Stream // nil before the first stream is open
	stopWatch context.CancelFunc
	head      int64     // everything up to it has come from etcd
	answered  time.Time // last time that etcd's watch said something
	cluster   uint64    // etcd's, 0 before the first stream is open
	anchor    anchor
	anchored  time.Time // last time that an anchor was dropped, or looked for
	usable    time.Time // last time that a stream was usable
}

// serve runs one term and returns why it is over.
func (r *Relay) serve(ctx context.Context, e *election) error {
	// Acknowledgements that were on a connection which is lost do not come on the next.
	lost := r.cfg.Conn.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer r.cfg.Conn.RemoveStatusListener(lost)
	t := newTerm(r, e)
	ctx, cancel := context.WithCancel(ctx)
	defer t.opening.Wait()
	defer cancel()
	unsubscribe, err := t.listen()
	if err != nil {
		return err
	}
	defer unsubscribe()
	for _, f := range t.feeds {
		t.open(ctx, f)
	}
	err = t.pump(ctx, lost)
	if !r.seams.killed {
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
		wake: make(chan struct{}, 1), opened: make(chan opened, len(r.cfg.Tiers)), fitting: make(chan struct{}, 1), ask: make(chan *feed, len(r.cfg.Tiers)),
		checked: make(chan checked, len(r.cfg.Tiers)), stopWatch: func() {}, usable: time.Now(),
	}
	for _, tier := range r.cfg.Tiers {
		f := &feed{name: r.cfg.Routes.Stream(tier), tier: tier}
		t.feeds = append(t.feeds, f)
		t.byStream[f.name] = f
	}
	return t
}

// drain waits a moment for what is under way, so that a successor need not read the
// streams' ends twice. What arrives later all the same is fenced.
func (t *term) drain(ctx context.Context) {
	deadline := time.Now().Add(farewell)
	for _, f := range t.feeds {
		for f.open() && time.Now().Before(deadline) {
			if units, _, err := f.publisher.underWay(); units == 0 || err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// pump publishes what etcd tells, until the connection to NATS or the watch of etcd
// is lost.
func (t *term) pump(ctx context.Context, lost <-chan nats.Status) error {
	defer func() { t.stopWatch() }()
	tick := time.NewTicker(t.cfg.ProgressInterval / 2)
	defer tick.Stop()
	// etcd says nothing while its watcher is catching up, so it is asked until
	// it answers.
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
		case o := <-t.opened:
			if err := t.join(ctx, o); err != nil {
				return err
			}
			again.Reset(0)
		case <-t.wake:
			if err := t.flushAll(ctx); err != nil {
				return err
			}
		case f := <-t.ask:
			if f.open() {
				f.asked = true
				again.Reset(0)
			}
		case c := <-t.checked:
			t.onChecked(c)
		case <-tick.C:
			if err := t.onTick(ctx, again); err != nil {
				return err
			}
		case <-again.C:
			if t.watch == nil || !t.anyAsked() {
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

// full reports whether some stream has to send before more is taken from etcd.
func (t *term) full() bool {
	for _, f := range t.feeds {
		if f.open() && f.full() {
			return true
		}
	}
	return false
}

func (t *term) onEtcd(ctx context.Context, resp kv.Response) error {
	batch, err := t.watch.Accept(resp)
	var compacted *kv.CompactedError
	switch {
	case errors.As(err, &compacted):
		if err := t.skip(ctx, compacted); err != nil {
			return err
		}
		t.rewatch(ctx)
	case err != nil:
		return fmt.Errorf("watch: %w", err)
	default:
		if err := t.publish(ctx, batch); err != nil {
			return err
		}
	}
	t.answered = time.Now() // publishing may have taken its time
	return nil
}

// join takes up a stream that was opened, or notes why it could not be.
func (t *term) join(ctx context.Context, o opened) error {
	f := o.feed
	if errors.Is(o.err, errDeposed) {
		return o.err
	}
	if o.err != nil {
		t.troubled(ctx, f, fmt.Errorf("open: %w", o.err))
		t.open(ctx, f)
		return nil
	}
	if t.cluster != 0 && o.cluster != t.cluster {
		t.markReplaced()
		return errReplaced
	}
	t.cluster = o.cluster
	if o.anew && !f.trouble.since.IsZero() {
		f.trouble.since = time.Now()
		f.trouble.remade++
	}
	publisher, err := newPublisher(t.cfg.Conn, t.cfg.AckTimeout, t.wake, t.seams.answer)
	if err != nil {
		return err
	}
	f.publisher, f.stream, f.sequencer, f.outbox = publisher, o.stream, o.sequencer, outbox{limits: o.limits}
	keeps := o.stream.CachedInfo().Config
	f.maxAge, f.maxBytes = keeps.MaxAge, keeps.MaxBytes
	if o.limits == batched && !f.singlesSince.IsZero() {
		f.limits = single
	}
	f.sequence, f.from, f.token, f.fencing, f.asked = o.sequence, o.from, 0, 0, true
	t.mu.Lock()
	delete(t.replaced, f.tier)
	t.mu.Unlock()
	if o.reset != 0 {
		// Nothing that the stream tells says which history the reset is of. The last
		// anchor may be of the one before.
		t.anchor = anchor{}
		if _, err := t.dropAnchor(ctx); err != nil {
			return err
		}
	}
	t.begin(f, o.reset)
	if t.watch == nil || f.from < t.head {
		t.rewatch(ctx)
	}
	return t.flushOne(ctx, f)
}

// flushAll sends what may be sent now.
func (t *term) flushAll(ctx context.Context) error {
	for _, f := range t.feeds {
		if !f.open() {
			continue
		}
		if err := t.flushOne(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// flushOne sends what may be sent now to one stream. If it takes no more, it is
// closed and opened anew; the others go on.
func (t *term) flushOne(ctx context.Context, f *feed) error {
	if err := t.flush(f); err != nil {
		t.reopen(ctx, f, err)
	}
	return nil
}

// reopen closes a stream after a failure and opens it anew.
func (t *term) reopen(ctx context.Context, f *feed, err error) {
	if batchRefused(err) {
		f.singlesSince = time.Now()
	}
	f.publisher.close()
	f.publisher, f.outbox = nil, outbox{}
	t.troubled(ctx, f, err)
	t.open(ctx, f)
}

// troubled notes that a stream cannot be published to.
func (t *term) troubled(ctx context.Context, f *feed, err error) {
	now := time.Now()
	if f.trouble.err == nil || f.trouble.err.Error() != err.Error() {
		klog.FromContext(ctx).Error(err, "stream of the event log cannot be published to; its readers watch etcd meanwhile", "stream", f.name)
	}
	f.trouble = f.trouble.started(err, now)
	t.metrics.failures.WithLabelValues(string(f.tier)).Inc()
	t.setStream(f.tier, func(s *StreamStatus) {
		if s.Usable || s.Problem == "" {
			s.Since = now
		}
		s.Usable, s.Problem = false, err.Error()
	})
}

// recovered notes that a stream has taken what a relay publishes first.
func (t *term) recovered(f *feed) {
	now := time.Now()
	f.trouble, t.usable = trouble{}, now
	f.pause.reset()
	t.setStream(f.tier, func(s *StreamStatus) {
		if !s.Usable {
			s.Since = now
		}
		s.Usable, s.Problem, s.History.MaxBytes = true, "", f.maxBytes
	})
}

// onTick looks after what should have happened.
func (t *term) onTick(ctx context.Context, again *time.Timer) error {
	now := time.Now()
	if t.watch != nil && !t.full() && now.Sub(t.answered) >= max(3*time.Second, 5*t.cfg.ProgressInterval) {
		if err := t.compareWithEtcd(ctx); err != nil {
			return err
		}
	}
	dropped := false
	if t.anchorDue() {
		var err error
		if dropped, err = t.dropAnchor(ctx); err != nil {
			return err
		}
	}
	healthy := false
	for _, f := range t.feeds {
		if !f.open() {
			continue
		}
		f.publisher.expire(now)
		healthy = healthy || f.trouble.since.IsZero()
		t.renewFence(f)
		if !f.singlesSince.IsZero() && now.Sub(f.singlesSince) >= time.Minute {
			if f.singlesSince = (time.Time{}); f.limits == single {
				f.limits = batched
			}
		}
		switch {
		case !dropped && now.Sub(f.published) < t.cfg.ProgressInterval*3/4:
		case f.complete >= t.head:
			f.asked = true
			again.Reset(0)
		default:
			t.progress(f, t.head)
		}
	}
	if healthy {
		t.usable = now
	} else if now.Sub(t.usable) >= 2*t.cfg.StreamPatience+t.cfg.AckTimeout {
		return t.fruitless()
	}
	t.check(ctx)
	return t.flushAll(ctx)
}

// fruitless says why no stream can be published to.
func (t *term) fruitless() error {
	errs := []error{errFruitless}
	for _, f := range t.feeds {
		if f.trouble.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.name, f.trouble.err))
		}
	}
	return errors.Join(errs...)
}

// anchorDue reports whether it is time for another anchor, and something has been
// written to etcd since the last one.
func (t *term) anchorDue() bool {
	return t.watch != nil && time.Since(t.anchored) >= anchorInterval && (t.anchor.Revision == 0 || t.head > t.anchor.Revision)
}

// dropAnchor writes an anchor. It returns an error only if the relay cannot go on.
func (t *term) dropAnchor(ctx context.Context) (bool, error) {
	t.anchored = time.Now()
	ask, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	next, err := t.anchor.drop(ask, t.elected, t.cfg.Keys)
	switch {
	case errors.Is(err, errReplaced):
		t.markReplaced()
		return false, err
	case errors.Is(err, errDeposed):
		return false, err
	case err != nil:
		klog.FromContext(ctx).V(2).Info("no anchor of the event log", "err", err)
		return false, nil
	}
	t.anchor = next
	return true, nil
}

var (
	errReplaced = errors.New("history of etcd was replaced")
	errSilent   = errors.New("watch of etcd is silent")
)

// compareWithEtcd finds out why the watch is silent, although it is asked for progress
// in each ProgressInterval. After a restore from a backup, etcd's client goes on
// watching from a revision that is in the future.
func (t *term) compareWithEtcd(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	now, err := currentPosition(ask, t.cfg.Etcd, t.cfg.Routes.Prefix())
	switch {
	case err != nil:
		return err
	case now.revision < t.head || now.cluster != t.cluster:
		t.markReplaced()
		return errReplaced
	}
	return errSilent
}

// rewatch opens etcd's watch anew after the revision that all open streams need.
func (t *term) rewatch(ctx context.Context) {
	t.stopWatch()
	ctx, t.stopWatch = context.WithCancel(ctx)
	first := true
	for _, f := range t.feeds {
		if f.open() && (first || f.from < t.head) {
			t.head, first = f.from, false
		}
	}
	t.answered = time.Now()
	t.watch = t.kv.Watch(ctx, kv.WatchOptions{Key: t.cfg.Routes.Prefix(), Prefix: true, After: t.head})
}

func (t *term) anyAsked() bool {
	for _, f := range t.feeds {
		if f.open() && f.asked {
			return true
		}
	}
	return false
}

// publish tells the events of a batch, or the progress that it is.
func (t *term) publish(ctx context.Context, b kv.Batch) error {
	for i := range b.Events {
		e := &b.Events[i]
		f := t.byStream[t.cfg.Routes.Of(e.Key).Stream]
		switch {
		case f == nil || !f.open():
		case e.Revision > f.complete:
			f.events = append(f.events, *e)
		case f.contradicts(e):
			klog.FromContext(ctx).Info("etcd tells of an event that the event log lacks", "stream", f.name, "revision", e.Revision, "told", f.complete)
			t.markReplaced()
			return errReplaced
		}
	}
	t.head = max(t.head, b.Revision)
	for _, f := range t.feeds {
		if !f.open() {
			continue
		}
		err := t.tell(ctx, f, f.events)
		clear(f.events)
		f.events = f.events[:0]
		if errors.Is(err, errDeposed) {
			return err
		}
		if err != nil {
			t.reopen(ctx, f, err)
			continue
		}
		if f.from = max(f.from, b.Revision); b.Progress && f.asked && t.head >= f.complete {
			t.progress(f, t.head)
		}
		if err := t.flushOne(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// skip opens a new section in the streams whose next events etcd has compacted.
func (t *term) skip(ctx context.Context, compacted *kv.CompactedError) error {
	now, err := currentPosition(ctx, t.cfg.Etcd, t.cfg.Routes.Prefix())
	if err != nil {
		return err
	}
	if _, err := t.elected.guard(ctx); err != nil {
		return err
	}
	for _, f := range t.feeds {
		if !f.open() {
			continue
		}
		// etcd can no longer be compared with what the stream tells already.
		f.from = max(f.from, f.complete)
		if compacted.Oldest != 0 && f.complete >= compacted.Oldest {
			continue
		}
		klog.FromContext(ctx).Info("event log has a gap, etcd is compacted", "stream", f.name, "after", f.complete, "until", now.revision)
		f.reset(now.revision)
		f.from = now.revision
		if err := t.flushOne(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// listen takes the readers' requests for progress.
func (t *term) listen() (stop func(), err error) {
	var subs []*nats.Subscription
	stop = func() {
		for _, s := range subs {
			_ = s.Unsubscribe()
		}
	}
	for _, f := range t.feeds {
		sub, err := t.cfg.Conn.Subscribe(f.name+askSubject, func(*nats.Msg) {
			select {
			case t.ask <- f:
			default: // enough of them wait
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

// checked is how a stream and its replicas are.
type checked struct {
	tier              Tier
	replicas, missing int
	history           History
}

// checkInterval is the time between two looks at the streams.
const checkInterval = 10 * time.Second

// check looks at the open streams now and then.
func (t *term) check(ctx context.Context) {
	if t.checking {
		return
	}
	t.checking = true
	type look struct {
		tier   Tier
		stream jetstream.Stream
	}
	var looks []look
	for _, f := range t.feeds {
		if f.open() {
			looks = append(looks, look{f.tier, f.stream})
		}
	}
	t.opening.Go(func() {
		for _, l := range looks {
			ask, cancel := context.WithTimeout(ctx, askTimeout)
			info, err := l.stream.Info(ask)
			cancel()
			if err != nil {
				continue
			}
			c := checked{tier: l.tier, replicas: info.Config.Replicas, missing: info.Config.Replicas - 1}
			c.history = History{Bytes: int64(info.State.Bytes), MaxBytes: info.Config.MaxBytes}
			if info.State.Msgs > 0 {
				c.history.Age = max(info.TimeStamp.Sub(info.State.FirstTime), 0)
			}
			if info.Cluster != nil {
				for _, peer := range info.Cluster.Replicas {
					if peer.Current && !peer.Offline {
						c.missing--
					}
				}
			}
			select {
			case t.checked <- c:
			case <-ctx.Done():
				return
			}
		}
		pause := time.NewTimer(checkInterval)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		select {
		case t.checked <- checked{}:
		case <-ctx.Done():
		}
	})
}

func (t *term) onChecked(c checked) {
	if c.tier == "" {
		t.checking = false
		return
	}
	t.setStream(c.tier, func(s *StreamStatus) { s.Replicas, s.Missing, s.History = c.replicas, max(c.missing, 0), c.history })
}
