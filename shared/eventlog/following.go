package eventlog

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"triune.dev/shared/etcdstore/kv"
)

// following is a running Reader. Everything here belongs to the goroutine of
// Run.
//
// It has two sources. From the stream it takes events while useEtcd is false;
// it verifies the stream in either case. To get back from etcd to the stream, it
// holds the stream at a point where a complete revision ends, waits until etcd
// has told as much, and goes on behind that point.
type following struct {
	*Reader
	ctx  context.Context
	sink Sink
	etcd *kv.Client

	revision int64      // the sink has everything up to it
	cluster  uint64     // etcd's
	pending  []kv.Event // complete revisions that the sink does not have yet
	last     kv.Event   // the last that the sink has, of kind 0 before the first
	told     int64      // revision of last, or of the reset before the first

	useEtcd bool
	target  int64      // etcd's revision when it became the source
	direct  *kv.Stream // nil while it cannot be opened
	after   int64      // where direct began
	leave   context.CancelFunc
	spoken  time.Time // last time that etcd's watch said something

	subscription *subscription // nil without NATS
	check        checker       // nil until the subscription begins afresh
	said         int           // messages since the subscription began afresh
	heard        time.Time     // last time that the stream was whole
	received     time.Time     // last time that the stream said anything
	held         bool          // the stream waits for etcd
	heldSince    time.Time
	record       record // of the stream, once known
	banned       uint64 // incarnation that tells a history which was replaced
	anchor       anchor // the last that the stream has told, in the history of record
	since        int64  // etcd's revision when that was noticed

	asked   bool // somebody waits for progress
	probing bool
	probed  chan probeResult
	probes  sync.WaitGroup
	again   *time.Timer // repeats questions
}

type probeResult struct {
	position position
	err      error
}

const (
	// askInterval is the time between two questions for progress.
	askInterval = 30 * time.Millisecond
	// holdLimit is how long the stream is held for etcd to reach it.
	holdLimit = 5 * time.Second
	// etcdTimeout bounds one question to etcd.
	etcdTimeout = 5 * time.Second
	// drainMessages bounds how many messages are put into one batch.
	drainMessages = 256
	// rereadRevisions is how far etcd is read again to compare it, where there is no
	// anchor.
	rereadRevisions = 10_000
)

func (f *following) run() error {
	f.probed = make(chan probeResult, 1)
	f.again = time.NewTimer(time.Hour)
	defer f.again.Stop()
	if !f.begin() {
		return nil
	}
	var stream <-chan received
	if f.js != nil {
		f.subscription = newSubscription(f.js, f.stream, f.seams.pull)
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(f.ctx)
		go func() {
			defer close(ended)
			f.subscription.run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
		}()
	}
	tick := time.NewTicker(max(f.cfg.Patience/6, time.Millisecond))
	defer tick.Stop()
	for {
		if stream = nil; f.subscription != nil && !f.held {
			stream = f.subscription.out
		}
		var direct <-chan kv.Response
		if f.direct != nil {
			direct = f.direct.C()
		}
		select {
		case r := <-stream:
			f.onStream(r)
		case resp, ok := <-direct:
			if ok {
				f.onEtcd(resp)
			} else {
				f.closeDirect()
			}
		case <-f.asks:
			f.asked = true
			f.ask()
		case <-f.again.C:
			f.ask()
		case p := <-f.probed:
			f.probing = false
			f.onProbe(p)
		case <-tick.C:
			f.onTick()
		case <-f.ctx.Done():
			return nil
		}
	}
}

// begin waits for etcd and starts the feed at its present revision.
func (f *following) begin() bool {
	pause := backoff{}
	for {
		now, err := f.position()
		if err == nil {
			f.restart(now)
			return true
		}
		klog.FromContext(f.ctx).V(2).Info("event log waits for etcd", "err", err)
		if !pause.wait(f.ctx) {
			return false
		}
	}
}

// position asks etcd.
func (f *following) position() (position, error) {
	ctx, cancel := context.WithTimeout(f.ctx, etcdTimeout)
	defer cancel()
	return currentPosition(ctx, f.cfg.Etcd, f.cfg.Routes.Prefix())
}

// restart begins anew at a position of etcd; what happened before is not told.
func (f *following) restart(now position) {
	f.pending, f.last, f.told, f.anchor = f.pending[:0], kv.Event{}, now.revision, anchor{}
	f.revision, f.cluster, f.target = now.revision, now.cluster, now.revision
	f.Reader.revision.Store(now.revision)
	f.covered.restart(now.revision)
	f.sink.Reset(now.revision)
	f.fresh(now.revision)
	f.openDirect(now.revision)
}

// openDirect goes over to etcd, or back to it after a failure, with what is after a
// revision. What the sink has of that already is left out.
func (f *following) openDirect(after int64) {
	f.closeDirect()
	if !f.useEtcd {
		f.useEtcd = true
		f.source(SourceEtcd)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	f.leave, f.spoken, f.after = cancel, time.Now(), after
	f.direct = f.etcd.Watch(ctx, kv.WatchOptions{Ranges: f.cfg.Routes.watched(f.cfg.Tier), After: after})
	f.again.Reset(askInterval)
}

func (f *following) closeDirect() {
	if f.leave != nil {
		f.leave()
	}
	f.direct, f.leave = nil, nil
}

// toEtcd makes etcd the source, from the revision on that the sink has.
func (f *following) toEtcd() {
	f.flush()
	now, err := f.position()
	after, contradicted := f.revision, false
	if err == nil {
		after, contradicted, err = f.compare()
	}
	switch {
	case err != nil:
		// The next tick tries again.
		f.closeDirect()
		if !f.useEtcd {
			f.useEtcd = true
			f.source(SourceEtcd)
		}
	case contradicted, f.replaced(now):
		f.startOver(now)
	default:
		f.note(func(s *Status) { s.heard = max(s.heard, now.revision) })
		f.target = now.revision
		f.openDirect(after)
	}
}

// compare looks whether etcd has the history that the sink has seen. If that can be
// told up to a revision before the sink's, it returns this one: between them, etcd
// must have nothing that the sink has not.
func (f *following) compare() (after int64, contradicted bool, err error) {
	ctx, cancel := context.WithTimeout(f.ctx, etcdTimeout)
	defer cancel()
	if f.last.Kind != 0 {
		if contradicted, err = contradicts(ctx, f.cfg.Etcd, &f.last); err != nil || contradicted {
			return 0, contradicted, err
		}
	}
	found, err := f.anchor.find(ctx, f.cfg.Etcd, f.cfg.Keys)
	if err != nil {
		return 0, false, err
	}
	switch {
	case found == confirmed:
		return min(f.revision, max(f.told, f.anchor.Revision)), false, nil
	case found == unknown && f.revision-f.told <= rereadRevisions:
		return f.told, false, nil
	}
	return f.revision, found == refuted, nil
}

// contradicted tells whether etcd does not have an event. Where it cannot be
// asked, or has compacted the event, it does not.
func (f *following) contradicted(e *kv.Event) bool {
	ctx, cancel := context.WithTimeout(f.ctx, etcdTimeout)
	defer cancel()
	if _, err := f.cfg.Etcd.Get(ctx, e.Key, clientv3.WithRev(max(e.Revision-1, 1)), clientv3.WithCountOnly()); err != nil {
		return true
	}
	contradicted, err := contradicts(ctx, f.cfg.Etcd, e)
	return err != nil || contradicted
}

// replaced tells whether etcd's history is not the one that the sink has seen.
func (f *following) replaced(now position) bool {
	return now.cluster != f.cluster || now.revision < f.revision
}

// startOver follows another history from its present on.
func (f *following) startOver(now position) {
	klog.FromContext(f.ctx).Info("history of etcd was replaced", "revision", f.revision, "current", now.revision)
	f.note(func(s *Status) { s.Resets++; s.heard = now.revision })
	f.banned, f.record, f.since = f.record.Incarnation, record{}, now.revision
	f.distrust()
	f.restart(now)
}

// distrust drops what is known of the stream; it is verified from its end.
func (f *following) distrust() {
	f.check, f.held, f.received = nil, false, time.Now()
	if f.subscription != nil {
		f.subscription.restart()
	}
}

// toStream makes the stream the source. Its events up to f.revision will be
// left out.
func (f *following) toStream() {
	f.closeDirect()
	f.useEtcd, f.held, f.heard = false, false, time.Now()
	f.source(SourceStream)
}

func (f *following) source(s Source) {
	f.note(func(st *Status) { st.Source, st.Since = s, time.Now() })
}

// flush hands the sink what is pending.
func (f *following) flush() {
	if len(f.pending) > 0 {
		f.apply(kv.Batch{Events: f.pending, Revision: f.pending[len(f.pending)-1].Revision})
		f.pending = nil
	}
}

// apply hands the sink a batch.
func (f *following) apply(b kv.Batch) {
	f.revision = b.Revision
	if len(b.Events) > 0 {
		f.last = b.Events[len(b.Events)-1]
		f.told = f.last.Revision
	}
	if f.js != nil {
		for i := range b.Events {
			f.covered.saw(f.cfg.Routes.Of(b.Events[i].Key).Subject, b.Events[i].Revision)
		}
	}
	f.sink.Apply(b)
	f.Reader.revision.Store(b.Revision)
	f.fresh(b.Revision)
	f.metrics.events.Add(float64(len(b.Events)))
}

// fresh notes that nothing newer than revision is known.
func (f *following) fresh(revision int64) {
	f.note(func(s *Status) {
		s.Revision = revision
		if revision >= s.heard {
			s.heard, s.freshAt = revision, time.Now()
		}
	})
}

// onEtcd takes what etcd's watch says.
func (f *following) onEtcd(resp kv.Response) {
	batch, err := f.direct.Accept(resp)
	f.spoken = time.Now()
	var compacted *kv.CompactedError
	switch {
	case errors.As(err, &compacted) && f.after < f.revision:
		f.openDirect(f.revision) // what was to be compared is compacted
		return
	case errors.As(err, &compacted):
		f.onCompacted()
		return
	case err != nil:
		f.onEnded(err)
		return
	}
	if f.direct.Waiting() {
		f.ask()
	}
	if batch.Revision <= f.revision && len(batch.Events) == 0 && !batch.Progress {
		return
	}
	wanted := batch.Events[:0]
	for _, e := range batch.Events {
		switch {
		case !f.wants(e.Key):
		case e.Revision > f.revision:
			wanted = append(wanted, e)
		case e.Revision > f.told:
			// The sink was told that there is nothing until f.revision.
			if now, err := f.position(); err == nil {
				f.startOver(now)
			} else {
				f.closeDirect()
			}
			return
		}
	}
	if batch.Revision < f.revision || batch.Revision == f.revision && !batch.Progress {
		return // only to be compared
	}
	f.apply(kv.Batch{Events: wanted, Revision: max(batch.Revision, f.revision), Progress: len(wanted) == 0})
	if batch.Progress {
		f.asked = false
	}
	f.tryStream()
}

// onEnded closes a watch of etcd that has ended; the next tick opens another one.
func (f *following) onEnded(err error) {
	log := klog.FromContext(f.ctx)
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		log = log.V(2)
	}
	log.Info("watch of etcd ended", "revision", f.revision, "err", err)
	f.closeDirect()
}

// onCompacted goes on at etcd's present: there is no other way to it.
func (f *following) onCompacted() {
	now, err := f.position()
	if err != nil {
		f.closeDirect()
		return
	}
	klog.FromContext(f.ctx).Info("history is compacted", "after", f.revision, "current", now.revision)
	f.note(func(s *Status) { s.Resets++ })
	f.restart(now)
}

// tryStream goes back to the stream if it is held at a point that etcd, which has
// just said something, has reached.
func (f *following) tryStream() {
	if !f.held || !f.useEtcd {
		return
	}
	if at, ok := f.check.position(); ok && f.revision >= at {
		f.toStream()
	}
}

// ask repeats the questions that wait for an answer.
func (f *following) ask() {
	if !f.asked && !f.held && (f.direct == nil || !f.direct.Waiting()) {
		return
	}
	if f.useEtcd {
		_ = f.etcd.RequestProgress(f.ctx)
	} else {
		f.askRelay()
	}
	f.again.Reset(askInterval)
}

// askRelay asks for progress in the stream. An answer that does not come is missed
// soon enough.
func (f *following) askRelay() { _ = f.cfg.Conn.Publish(f.stream+askSubject, nil) }

// onTick looks after what should have happened.
func (f *following) onTick() {
	now := time.Now()
	if !f.useEtcd {
		if f.seams.blind {
			return
		}
		if !f.cfg.Conn.IsConnected() {
			f.toEtcd()
		} else if now.Sub(f.heard) >= f.cfg.Patience {
			f.probe()
		}
		return
	}
	switch {
	case f.direct == nil:
		f.toEtcd()
	case now.Sub(f.spoken) >= f.cfg.Patience:
		f.probe()
	case now.Sub(f.spoken) >= f.cfg.Patience/3:
		_ = f.etcd.RequestProgress(f.ctx)
	}
	switch {
	case f.held && now.Sub(f.heldSince) > holdLimit:
		// The stream tells of a revision that etcd does not reach.
		f.distrust()
	case !f.held && f.check != nil && now.Sub(f.received) >= f.cfg.Patience:
		// Its consumer may wait for a sequence that a stream made anew will
		// not reach for long.
		f.distrust()
	}
}

// probe asks etcd how far it is, without holding up the feed.
func (f *following) probe() {
	if f.probing {
		return
	}
	f.probing = true
	f.probes.Go(func() {
		now, err := f.position()
		f.probed <- probeResult{position: now, err: err} // has room for the only one
	})
}

// onProbe compares etcd's revision with that of a silent feed.
func (f *following) onProbe(p probeResult) {
	switch {
	case p.err != nil:
		klog.FromContext(f.ctx).V(2).Info("event log is silent and etcd does not answer", "err", p.err)
	case p.position.cluster != f.cluster:
		f.startOver(p.position)
	case p.position.revision == f.revision:
		f.heard = time.Now()
		f.fresh(f.revision)
	case p.position.revision < f.revision:
		// The feed may have gone on since the question.
		if now, err := f.position(); err == nil && f.replaced(now) {
			f.startOver(now)
		}
	case f.useEtcd:
		f.toEtcd()
	case time.Since(f.heard) >= f.cfg.Patience:
		klog.FromContext(f.ctx).Info("event log is silent, watching etcd", "stream", f.stream, "revision", f.revision, "current", p.position.revision)
		f.note(func(s *Status) { s.Stalls++ })
		f.distrust()
		f.toEtcd()
	}
}

func (f *following) close() {
	f.closeDirect()
	f.probes.Wait()
}
