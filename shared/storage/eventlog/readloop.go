package eventlog

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// readLoop is the state of one Reader.Run. It belongs to the goroutine of Run.
//
// It has two sources. While useEtcd is false, it takes events from the stream; it verifies the
// stream in either case. To switch from etcd back to the stream, it pauses the stream at the
// end of a complete revision, waits until etcd has reached that revision, and continues behind
// it.
type readLoop struct {
	*Reader
	ctx  context.Context
	sink Sink
	etcd *kv.Client

	revision          int64      // the sink has everything up to it
	cluster           uint64     // cluster ID of etcd
	pending           []kv.Event // complete revisions that the sink does not have yet
	lastEvent         kv.Event   // last event of the sink, of kind 0 before the first
	lastEventRevision int64      // revision of lastEvent, or of the reset before the first event

	useEtcd        bool
	switchRevision int64      // etcd's revision when it became the source
	watch          *kv.Stream // nil while it cannot be opened
	watchAfter     int64      // revision after which watch began
	cancelWatch    context.CancelFunc
	lastResponse   time.Time // last time that etcd's watch responded

	subscription        *subscription // nil without NATS
	checker             checker       // nil until the subscription restarts
	messageCount        int           // messages since the subscription restarted
	lastVerified        time.Time     // last time that the stream was known to be complete
	lastReceived        time.Time     // last time that a message arrived
	paused              bool          // the stream waits for etcd
	pausedAt            time.Time
	record              record // of the stream, once known
	replacedIncarnation uint64 // incarnation with a replaced history
	anchor              anchor // latest anchor of the stream, in the history of record
	replacedRevision    int64  // etcd's revision when the replacement was noticed

	progressWanted bool // somebody waits for progress
	probing        bool
	probed         chan probeResult
	probes         sync.WaitGroup
	retry          *time.Timer // repeats requests for progress
}

type probeResult struct {
	position position
	err      error
}

const (
	// progressRetry is the time between two requests for progress.
	progressRetry = 30 * time.Millisecond
	// pauseLimit is how long the stream waits for etcd to catch up.
	pauseLimit = 5 * time.Second
	// etcdTimeout bounds one request to etcd.
	etcdTimeout = 5 * time.Second
	// maxBatchMessages bounds the messages that form one batch.
	maxBatchMessages = 256
	// rereadRevisions bounds the revisions that are read from etcd again for comparison if
	// there is no anchor.
	rereadRevisions = 10_000
)

func (l *readLoop) run() error {
	l.probed = make(chan probeResult, 1)
	l.retry = time.NewTimer(time.Hour)
	defer l.retry.Stop()
	if !l.start() {
		return nil
	}
	var stream <-chan delivery
	if l.js != nil {
		l.subscription = newSubscription(l.js, l.stream, l.hooks.maxPending)
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(l.ctx)
		go func() {
			defer close(ended)
			l.subscription.run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
		}()
	}
	tick := time.NewTicker(max(l.cfg.Patience/6, time.Millisecond))
	defer tick.Stop()
	for {
		if stream = nil; l.subscription != nil && !l.paused {
			stream = l.subscription.deliveries
		}
		var responses <-chan kv.Response
		if l.watch != nil {
			responses = l.watch.C()
		}
		select {
		case r := <-stream:
			l.onStream(r)
		case resp, ok := <-responses:
			if ok {
				l.onEtcd(resp)
			} else {
				l.closeWatch()
			}
		case <-l.progressRequests:
			l.progressWanted = true
			l.requestProgress()
		case <-l.retry.C:
			l.requestProgress()
		case p := <-l.probed:
			l.probing = false
			l.onProbe(p)
		case <-tick.C:
			l.onTick()
		case <-l.ctx.Done():
			return nil
		}
	}
}

// start waits for etcd and starts the feed at its current revision.
func (l *readLoop) start() bool {
	pause := backoff{}
	for {
		now, err := l.position()
		if err == nil {
			l.restart(now)
			return true
		}
		klog.FromContext(l.ctx).V(2).Info("event log waits for etcd", "err", err)
		if !pause.wait(l.ctx) {
			return false
		}
	}
}

// restart starts the feed at a position of etcd; earlier changes are lost to the sink.
func (l *readLoop) restart(now position) {
	l.pending, l.lastEvent, l.lastEventRevision, l.anchor = l.pending[:0], kv.Event{}, now.revision, anchor{}
	l.revision, l.cluster, l.switchRevision = now.revision, now.cluster, now.revision
	l.Reader.revision.Store(now.revision)
	l.coverage.restart(now.revision)
	l.sink.Reset(now.revision)
	l.markFresh(now.revision)
	l.openWatch(now.revision)
}

// flush applies the pending events.
func (l *readLoop) flush() {
	if len(l.pending) > 0 {
		l.apply(kv.Batch{Events: l.pending, Revision: l.pending[len(l.pending)-1].Revision})
		l.pending = nil
	}
}

// apply passes a batch to the sink.
func (l *readLoop) apply(b kv.Batch) {
	l.revision = b.Revision
	if len(b.Events) > 0 {
		l.lastEvent = b.Events[len(b.Events)-1]
		l.lastEventRevision = l.lastEvent.Revision
	}
	if l.js != nil {
		for i := range b.Events {
			l.coverage.observe(l.cfg.Routes.Route(b.Events[i].Key).Subject, b.Events[i].Revision)
		}
	}
	l.sink.Apply(b)
	l.Reader.revision.Store(b.Revision)
	l.markFresh(b.Revision)
	l.metrics.events.Add(float64(len(b.Events)))
}

// markFresh records that no revision beyond this one is known.
func (l *readLoop) markFresh(revision int64) {
	l.updateStatus(func(s *Status) {
		s.Revision = revision
		if revision >= s.highest {
			s.highest, s.freshAt = revision, time.Now()
		}
	})
}

func (l *readLoop) setSource(s Source) {
	l.updateStatus(func(st *Status) { st.Source, st.Since = s, time.Now() })
}

// requestProgress repeats the request for progress while it is unanswered.
func (l *readLoop) requestProgress() {
	if !l.progressWanted && !l.paused && (l.watch == nil || !l.watch.Waiting()) {
		return
	}
	if l.useEtcd {
		_ = l.etcd.RequestProgress(l.ctx)
	} else {
		l.requestRelayProgress()
	}
	l.retry.Reset(progressRetry)
}

// requestRelayProgress requests progress from the relay. A lost request is repeated or found
// out by a tick.
func (l *readLoop) requestRelayProgress() {
	_ = l.cfg.Conn.Publish(l.stream+progressRequestSubject, nil)
}

// onTick does everything that is due by time.
func (l *readLoop) onTick() {
	now := time.Now()
	if !l.useEtcd {
		if l.hooks.blind {
			return
		}
		if !l.cfg.Conn.IsConnected() {
			l.switchToEtcd()
		} else if now.Sub(l.lastVerified) >= l.cfg.Patience {
			l.probe()
		}
		return
	}
	switch {
	case l.watch == nil:
		l.switchToEtcd()
	case now.Sub(l.lastResponse) >= l.cfg.Patience:
		l.probe()
	case now.Sub(l.lastResponse) >= l.cfg.Patience/3:
		_ = l.etcd.RequestProgress(l.ctx)
	}
	switch {
	case l.paused && now.Sub(l.pausedAt) > pauseLimit:
		// The stream has a revision that etcd does not reach.
		l.resync()
	case !l.paused && l.checker != nil && now.Sub(l.lastReceived) >= l.cfg.Patience:
		// The consumer may be waiting for a sequence that a recreated stream will not reach for
		// a long time.
		l.resync()
	}
}

// probe asks etcd for its revision, without blocking the loop.
func (l *readLoop) probe() {
	if l.probing {
		return
	}
	l.probing = true
	l.probes.Go(func() {
		now, err := l.position()
		l.probed <- probeResult{position: now, err: err} // at most one probe runs, so there is room
	})
}

// onProbe compares etcd's revision with that of a silent feed.
func (l *readLoop) onProbe(p probeResult) {
	switch {
	case p.err != nil:
		klog.FromContext(l.ctx).V(2).Info("event log is silent and etcd does not answer", "err", p.err)
	case p.position.cluster != l.cluster:
		l.onReplaced(p.position)
	case p.position.revision == l.revision:
		l.lastVerified = time.Now()
		l.markFresh(l.revision)
	case p.position.revision < l.revision:
		// The feed may have advanced since the probe.
		if now, err := l.position(); err == nil && l.isReplaced(now) {
			l.onReplaced(now)
		}
	case l.useEtcd:
		l.switchToEtcd()
	case time.Since(l.lastVerified) >= l.cfg.Patience:
		klog.FromContext(l.ctx).Info("event log is silent, watching etcd", "stream", l.stream, "revision", l.revision, "current", p.position.revision)
		l.updateStatus(func(s *Status) { s.Stalls++ })
		l.resync()
		l.switchToEtcd()
	}
}

func (l *readLoop) close() {
	l.closeWatch()
	l.probes.Wait()
}
