package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"

	"triune.dev/shared/etcdstore/kv"
)

// term is the work of an elected relay under one epoch: from reading the tails
// of its streams to the first failure. It runs on one goroutine.
type term struct {
	*Relay
	kv        *kv.Client
	epoch     uint64
	publisher *publisher
	feeds     []*feed
	byStream  map[string]*feed
	head      int64 // everything up to it has come from etcd
	cluster   uint64
	answered  time.Time // last time that etcd's watch said something
	ask       chan *feed
}

// feed is one stream within a term.
type feed struct {
	name   string
	tier   Tier
	stream jetstream.Stream
	*sequencer
	sequence  uint64     // of the tail, plus what has been sent
	queued    []kv.Event // of the batch in work
	published time.Time
	asked     bool
}

// serve runs one term and returns why it is over.
func (r *Relay) serve(ctx context.Context, e *election) error {
	if err := CheckMaxPayload(r.cfg.Conn, r.cfg.RequestLimit); err != nil {
		return err
	}
	p, err := newPublisher(r.cfg.Conn, r.cfg.AckTimeout)
	if err != nil {
		return err
	}
	p.intercept = r.seams.answer
	defer p.close()
	// Acknowledgements that were on a connection which is lost do not come on the next.
	lost := r.cfg.Conn.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer r.cfg.Conn.RemoveStatusListener(lost)
	t := &term{
		Relay: r, kv: kv.New(r.cfg.Etcd, kv.WithOwnStream()), publisher: p,
		byStream: map[string]*feed{}, ask: make(chan *feed, len(r.cfg.Tiers)),
	}
	if t.epoch, err = r.epoch(ctx, e); err != nil {
		return err
	}
	for _, tier := range r.cfg.Tiers {
		f := &feed{name: r.cfg.Routes.Stream(tier), tier: tier}
		t.feeds = append(t.feeds, f)
		t.byStream[f.name] = f
		if err := t.open(ctx, f); err != nil {
			return fmt.Errorf("stream %s: %w", f.name, err)
		}
	}
	r.replaced = false
	unsubscribe, err := t.listen()
	if err != nil {
		return err
	}
	defer unsubscribe()
	err = t.pump(ctx, lost)
	if !r.seams.killed {
		// What is under way is either in the stream or will never be, before
		// anybody reads the tail. A process that ends does not wait for it long:
		// what comes later is fenced, as it is after a crash.
		limit := r.cfg.AckTimeout
		if ctx.Err() != nil {
			limit = min(limit, farewell)
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if failure := p.drain(end); failure != nil && ctx.Err() == nil {
			return failure
		}
	}
	return err
}

// open finds or makes the stream, and takes up its chain.
func (t *term) open(ctx context.Context, f *feed) error {
	var err error
	if f.stream, err = t.js.CreateOrUpdateStream(ctx, t.cfg.Stream.config(f.name)); err != nil {
		return err
	}
	inc := incarnations{etcd: t.cfg.Etcd, keys: t.cfg.Keys}
	incarnation, err := inc.current(ctx, f.name)
	if err != nil {
		return err
	}
	end, err := readTail(ctx, f.stream)
	if err != nil {
		return err
	}
	now, err := currentPosition(ctx, t.cfg.Etcd, t.cfg.Routes.Prefix())
	if err != nil {
		return err
	}
	t.cluster = now.cluster
	contradicted := t.replaced || end.last != nil && end.last.ID.Epoch >= t.epoch
	if !contradicted && end.event != nil && end.event.Type == typeEvent {
		if contradicted, err = contradicts(ctx, t.cfg.Etcd, &end.event.Event); err != nil {
			return err
		}
	}
	f.sequencer = &sequencer{incarnation: incarnation, epoch: t.epoch, subjects: map[string]ID{}}
	// Readers take the chain up at the first progress: soon.
	f.sequence, f.published, f.asked = end.sequence, time.Now(), true
	switch end.judge(incarnation, now.revision, contradicted) {
	case goOn:
		f.last, f.event, f.section, f.complete = end.last.ID, end.chain(), end.section, end.complete()
		return nil
	case replace:
		klog.FromContext(ctx).Info("event log tells another history than etcd, making it anew", "stream", f.name,
			"revision", now.revision, "streamRevision", end.last.ID.Revision)
		if err := t.js.DeleteStream(ctx, f.name); err != nil {
			return err
		}
		if f.incarnation, err = inc.renew(ctx, f.name, now.cluster); err != nil {
			return err
		}
		if f.stream, err = t.js.CreateStream(ctx, t.cfg.Stream.config(f.name)); err != nil {
			return err
		}
		f.sequence = 0
	}
	if err := t.reset(f, now.revision); err != nil {
		return err
	}
	// It has no predecessor that could fence more than itself.
	return t.publisher.drain(ctx)
}

// send publishes one message of a stream behind its fence.
func (t *term) send(f *feed, m *message, subject string, expected ID) error {
	if t.seams.publish != nil {
		t.seams.publish(m)
	}
	// A tier that can make consumers can have messages of its stream delivered
	// into another one, headers and all: they name the stream they are for.
	header := nats.Header{jetstream.MsgIDHeader: {m.header()}, jetstream.ExpectedStreamHeader: {f.name}}
	if expected.unpublished() {
		header[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(f.sequence, 10)}
	} else {
		header[jetstream.ExpectedLastMsgIDHeader] = []string{headerID(m.Incarnation, expected)}
	}
	if t.seams.fence != nil {
		header = t.seams.fence(f, m)
	}
	if m.Type == typeProgress {
		header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	}
	f.sequence++
	f.published = time.Now()
	t.metrics.published(f.tier, m)
	return t.publisher.send(subject, header, m)
}

func (t *term) reset(f *feed, revision int64) error {
	expected := f.last
	m := f.sequencer.reset(revision)
	return t.send(f, &m, f.name+resetSubject, expected)
}

func (t *term) progress(f *feed, revision int64) error {
	expected := f.last
	m := f.sequencer.progress(revision)
	f.asked = false
	return t.send(f, &m, f.name+progressSubject, expected)
}

// pump publishes what etcd tells, until the connection to NATS is lost.
func (t *term) pump(ctx context.Context, lost <-chan nats.Status) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := t.watch(ctx)
	tick := time.NewTicker(t.cfg.ProgressInterval / 2)
	defer tick.Stop()
	// etcd says nothing while its watcher is catching up, so it is asked until
	// it answers.
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case resp, ok := <-watch.C():
			if !ok {
				return errors.New("watch ended")
			}
			batch, err := watch.Accept(resp)
			var compacted *kv.CompactedError
			switch {
			case errors.As(err, &compacted):
				if err := t.skip(ctx, compacted); err != nil {
					return err
				}
				watch = t.watch(ctx)
			case err != nil:
				return fmt.Errorf("watch: %w", err)
			default:
				if err := t.publish(ctx, batch); err != nil {
					return err
				}
			}
			t.answered = time.Now() // publishing may have taken its time
		case f := <-t.ask:
			f.asked = true
			again.Reset(0)
		case <-tick.C:
			if time.Since(t.answered) >= max(3*time.Second, 5*t.cfg.ProgressInterval) {
				if err := t.compareWithEtcd(ctx); err != nil {
					return err
				}
			}
			for _, f := range t.feeds {
				if time.Since(f.published) < t.cfg.ProgressInterval*3/4 {
					continue
				}
				if f.asked = f.complete >= t.head; f.asked {
					again.Reset(0)
				} else if err := t.progress(f, t.head); err != nil {
					return err
				}
			}
		case <-again.C:
			if !t.anyAsked() {
				continue
			}
			if err := t.kv.RequestProgress(ctx); err != nil {
				return fmt.Errorf("request progress: %w", err)
			}
			again.Reset(30 * time.Millisecond)
		case <-t.publisher.failed():
			_, err := t.publisher.idle()
			return err
		case <-lost:
			t.publisher.fail(errConnectionLost)
			return errConnectionLost
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

var (
	errReplaced = errors.New("history of etcd was replaced")
	errSilent   = errors.New("watch of etcd is silent")
)

// compareWithEtcd looks into the silence of the watch, which is asked for progress
// in each ProgressInterval, and so is silent for no other reason for long. After a restore from a
// backup etcd's client goes on watching from a revision that is in the future.
func (t *term) compareWithEtcd(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	now, err := currentPosition(ask, t.cfg.Etcd, t.cfg.Routes.Prefix())
	switch {
	case err != nil:
		return err
	case now.revision < t.head || now.cluster != t.cluster:
		t.replaced = true
		return errReplaced
	}
	return errSilent
}

// watch opens etcd's watch after the revision that all streams have.
func (t *term) watch(ctx context.Context) *kv.Stream {
	t.head = t.feeds[0].complete
	for _, f := range t.feeds {
		t.head = min(t.head, f.complete)
	}
	t.answered = time.Now()
	return t.kv.Watch(ctx, kv.WatchOptions{Key: t.cfg.Routes.Prefix(), Prefix: true, After: t.head})
}

func (t *term) anyAsked() bool {
	for _, f := range t.feeds {
		if f.asked {
			return true
		}
	}
	return false
}

// publish sends the events of a batch, or the progress that it is.
func (t *term) publish(ctx context.Context, b kv.Batch) error {
	for i := range b.Events {
		e := &b.Events[i]
		if f := t.byStream[t.cfg.Routes.Of(e.Key).Stream]; f != nil && e.Revision > f.complete {
			f.queued = append(f.queued, *e)
		}
	}
	t.head = max(t.head, b.Revision)
	for _, f := range t.feeds {
		if len(f.queued) > 0 {
			if err := t.publishEvents(ctx, f); err != nil {
				return err
			}
		}
		if b.Progress && f.asked && t.head >= f.complete {
			if err := t.progress(f, t.head); err != nil {
				return err
			}
		}
	}
	return nil
}

// publishEvents sends what is queued, revision by revision.
func (t *term) publishEvents(ctx context.Context, f *feed) error {
	events := f.queued
	defer func() {
		clear(f.queued)
		f.queued = f.queued[:0]
	}()
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision {
			n++
		}
		if err := t.publishRevision(ctx, f, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

func (t *term) publishRevision(ctx context.Context, f *feed, events []kv.Event) error {
	limit := int(t.cfg.Conn.MaxPayload())
	for i := range events {
		if e := &events[i]; len(e.Key)+len(e.Value)+len(e.Previous)+messageOverhead > limit {
			// etcd takes larger requests than it was said to. Readers get this
			// revision from etcd.
			klog.FromContext(ctx).Info("event is too large for NATS", "stream", f.name, "revision", e.Revision)
			return t.reset(f, e.Revision)
		}
	}
	for i := range events {
		e := &events[i]
		subject := t.cfg.Routes.Of(e.Key).Subject
		if !f.knows(subject) {
			last, err := lastOn(ctx, f.stream, subject)
			if err != nil {
				return err
			}
			var id ID
			if last != nil {
				id = last.ID
			}
			f.learn(subject, id)
		}
		expected := f.last
		m := f.change(*e, subject, i == len(events)-1)
		if err := t.send(f, &m, subject, expected); err != nil {
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
	for _, f := range t.feeds {
		if compacted.Oldest != 0 && f.complete >= compacted.Oldest {
			continue
		}
		klog.FromContext(ctx).Info("event log has a gap, etcd is compacted", "stream", f.name, "after", f.complete, "until", now.revision)
		if err := t.reset(f, now.revision); err != nil {
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
