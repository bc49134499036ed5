package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// rewatch restarts the watch of etcd at the earliest revision that an open stream needs.
func (t *term) rewatch(ctx context.Context) {
	t.stopWatch()
	ctx, t.stopWatch = context.WithCancel(ctx)
	first := true
	for _, f := range t.feeds {
		if f.open() && (first || f.watchFrom < t.head) {
			t.head, first = f.watchFrom, false
		}
	}
	t.lastResponse = time.Now()
	t.watch = t.kv.Watch(ctx, kv.WatchOptions{Key: t.cfg.Routes.Prefix(), Prefix: true, After: t.head})
}

func (t *term) onEtcd(ctx context.Context, resp kv.Response) error {
	batch, err := t.watch.Accept(resp)
	var compacted *kv.CompactedError
	switch {
	case errors.As(err, &compacted):
		if err := t.skipCompacted(ctx, compacted); err != nil {
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
	t.lastResponse = time.Now() // publishing may have taken a while
	return nil
}

// publish queues the events or the progress of a batch.
func (t *term) publish(ctx context.Context, b kv.Batch) error {
	for i := range b.Events {
		e := &b.Events[i]
		f := t.byStream[t.cfg.Routes.Route(e.Key).Stream]
		switch {
		case f == nil || !f.open():
		case e.Revision > f.complete:
			f.batch = append(f.batch, *e)
		case f.contradicts(e):
			klog.FromContext(ctx).Info("etcd has an event that the event log lacks", "stream", f.name, "revision", e.Revision, "told", f.complete)
			t.markReplaced()
			return errReplaced
		}
	}
	t.head = max(t.head, b.Revision)
	for _, f := range t.feeds {
		if !f.open() {
			continue
		}
		err := t.queueEvents(ctx, f, f.batch)
		clear(f.batch)
		f.batch = f.batch[:0]
		if errors.Is(err, errDeposed) {
			return err
		}
		if err != nil {
			t.reopen(ctx, f, err)
			continue
		}
		if f.watchFrom = max(f.watchFrom, b.Revision); b.Progress && f.progressWanted && t.head >= f.complete {
			t.progress(f, t.head)
		}
		t.flush(ctx, f)
	}
	return nil
}

// queueEvents queues events, which must follow those queued before.
func (t *term) queueEvents(ctx context.Context, f *feed, events []kv.Event) error {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision {
			n++
		}
		if err := t.queueRevision(ctx, f, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// lookupTimeout bounds the lookup of a subject's last event; other streams wait meanwhile.
const lookupTimeout = 2 * time.Second

func (t *term) queueRevision(ctx context.Context, f *feed, events []kv.Event) error {
	limit := int(t.cfg.Conn.MaxPayload())
	for i := range events {
		if e := &events[i]; len(e.Key)+len(e.Value)+len(e.Previous)+messageOverhead > limit {
			// etcd accepts larger requests than RequestLimit says. Readers get this revision
			// from etcd.
			klog.FromContext(ctx).Info("event is too large for NATS", "stream", f.name, "revision", e.Revision)
			if _, err := t.elected.guard(ctx); err != nil {
				return err
			}
			f.reset(e.Revision)
			return nil
		}
	}
	for i := range events {
		e := &events[i]
		subject := t.cfg.Routes.Route(e.Key).Subject
		if !f.knows(subject) {
			lookup, cancel := context.WithTimeout(ctx, lookupTimeout)
			last, err := lastOn(lookup, f.stream, subject)
			cancel()
			if err != nil {
				return err
			}
			var id ID
			if last != nil {
				id = last.ID
			}
			f.learn(subject, id)
		}
		f.enqueue(f.change(*e, subject, i == len(events)-1), subject, false)
	}
	t.renewFence(f)
	return nil
}

func (t *term) progress(f *feed, revision int64) {
	f.progressWanted = false
	f.enqueue(f.sequencer.progress(revision, t.anchor), f.name+progressSubject, false)
}

// skipCompacted starts a new section in each stream whose next events etcd has compacted.
func (t *term) skipCompacted(ctx context.Context, compacted *kv.CompactedError) error {
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
		// The events that the stream already has can no longer be compared with etcd.
		f.watchFrom = max(f.watchFrom, f.complete)
		if compacted.Oldest != 0 && f.complete >= compacted.Oldest {
			continue
		}
		klog.FromContext(ctx).Info("event log has a gap, etcd is compacted", "stream", f.name, "after", f.complete, "until", now.revision)
		f.reset(now.revision)
		f.watchFrom = now.revision
		t.flush(ctx, f)
	}
	return nil
}

// flushAll sends whatever may be sent now.
func (t *term) flushAll(ctx context.Context) {
	for _, f := range t.feeds {
		if f.open() {
			t.flush(ctx, f)
		}
	}
}

// flush sends whatever may be sent to one stream now. If that fails, it reopens the stream; the
// others continue.
func (t *term) flush(ctx context.Context, f *feed) {
	if err := t.sendReady(f); err != nil {
		t.reopen(ctx, f, err)
	}
}

// sendReady sends whatever may be sent now. It returns the first failure.
func (t *term) sendReady(f *feed) error {
	for {
		units, bytes, err := f.publisher.inFlight()
		if err != nil {
			return err
		}
		if units == 0 && f.unackedFence != 0 {
			f.token, f.unackedFence = f.unackedFence, 0
			t.markUsable(f)
		}
		var messages []outgoing
		if f.unackedFence == 0 {
			messages = f.outbox.next(units, bytes)
		}
		if messages == nil {
			if f.empty() && f.unackedFence == 0 || f.publisher.requestWake() {
				return nil
			}
			continue // everything was acknowledged meanwhile
		}
		if err := t.send(f, messages); err != nil {
			return err
		}
	}
}

// send publishes one unit behind its fence.
func (t *term) send(f *feed, messages []outgoing) error {
	for i := range messages {
		if t.hooks.publish != nil {
			t.hooks.publish(&messages[i].message)
		}
		t.metrics.published(f.tier, &messages[i].message)
	}
	after := f.sequence
	err := f.publisher.send(messages, func(i int) nats.Header {
		m := &messages[i]
		var h nats.Header
		switch {
		case t.hooks.fence != nil:
			h = t.hooks.fence(f, &m.message)
		case len(messages) > 1:
			h = f.batchHeader(after, i, len(messages))
		default:
			h = f.fence()
		}
		if m.Type == typeProgress {
			h[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
		}
		f.sequence++
		return h
	})
	if messages[0].barrier {
		f.unackedFence = f.sequence
	}
	return err
}
