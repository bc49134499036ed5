package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/shared/storage/kv"
)

// feed is one stream within a term. A goroutine opens it in the background, so that no other
// stream has to wait; while it is closed it gets no events. Everything here belongs to the
// term's goroutine.
type feed struct {
	name   string
	tier   Tier
	outage outage
	pause  backoff
	// batchRefusedAt is when a batch was refused as such. For a minute after that, messages are
	// published one by one.
	batchRefusedAt time.Time

	// The remaining fields are set while the feed is open.

	publisher *publisher
	stream    jetstream.Stream
	*sequencer
	outbox
	// watchFrom is the revision after which etcd must be watched for this stream. An event
	// between watchFrom and complete that the stream lacks proves that etcd has another
	// history.
	watchFrom int64
	// sequence is the stream sequence of the last message that was sent.
	sequence uint64
	// token is the sequence of the last acknowledged message on the fence subject, and
	// unackedFence that of one in flight, or 0. The last fence was queued at fencedAt, and
	// bytesSinceFence after it.
	token, unackedFence uint64
	fencedAt            time.Time
	bytesSinceFence     int64
	maxAge              time.Duration // limits of the stream's history
	maxBytes            int64
	lastQueued          time.Time  // last time that a message was queued
	progressWanted      bool       // a reader requested progress
	batch               []kv.Event // events of the batch being published
}

func (f *feed) open() bool { return f.publisher != nil }

// enqueue appends a message to the outbox.
func (f *feed) enqueue(m message, subject string, barrier bool) {
	f.lastQueued = time.Now()
	size := len(m.Event.Key) + len(m.Event.Value) + len(m.Event.Previous) + messageOverhead/4
	f.bytesSinceFence += int64(size)
	if barrier {
		f.fencedAt, f.bytesSinceFence = f.lastQueued, 0
	}
	f.push(outgoing{message: m, subject: subject, barrier: barrier, size: size})
}

func (f *feed) reset(revision int64) {
	f.enqueue(f.sequencer.reset(revision), f.name+resetSubject, false)
}

// contradicts reports whether the stream lacks an event that it should have, which means that
// it has another history than etcd.
func (f *feed) contradicts(e *kv.Event) bool {
	return !f.event.unpublished() && e.Revision > f.event.Revision && e.Revision <= f.complete
}

// onOpened adopts an open stream, or records why it could not be opened.
func (t *term) onOpened(ctx context.Context, o openResult) error {
	f := o.feed
	if errors.Is(o.err, errDeposed) {
		return o.err
	}
	if o.err != nil {
		t.markUnusable(ctx, f, fmt.Errorf("open: %w", o.err))
		t.open(ctx, f)
		return nil
	}
	if t.cluster != 0 && o.cluster != t.cluster {
		t.markReplaced()
		return errReplaced
	}
	t.cluster = o.cluster
	if o.recreated && !f.outage.since.IsZero() {
		f.outage.since = time.Now()
		f.outage.recreations++
	}
	publisher, err := newPublisher(t.cfg.Conn, t.cfg.AckTimeout, t.wake, t.hooks.acknowledge)
	if err != nil {
		return err
	}
	f.publisher, f.stream, f.sequencer, f.outbox = publisher, o.stream, o.sequencer, outbox{limits: o.limits}
	config := o.stream.CachedInfo().Config
	f.maxAge, f.maxBytes = config.MaxAge, config.MaxBytes
	if o.limits == batched && !f.batchRefusedAt.IsZero() {
		f.limits = single
	}
	f.sequence, f.watchFrom, f.token, f.unackedFence, f.progressWanted = o.sequence, o.from, 0, 0, true
	t.mu.Lock()
	delete(t.replaced, f.tier)
	t.mu.Unlock()
	if o.reset != 0 {
		// Nothing in the stream says which history the reset belongs to; the last anchor may
		// belong to the one before.
		t.anchor = anchor{}
		if _, err := t.writeAnchor(ctx); err != nil {
			return err
		}
	}
	t.queueFirst(f, o.reset)
	if t.watch == nil || f.watchFrom < t.head {
		t.rewatch(ctx)
	}
	t.flush(ctx, f)
	return nil
}

// queueFirst queues the first messages of a relay: a reset, if the stream cannot be continued,
// and the fence against earlier relays.
func (t *term) queueFirst(f *feed, reset int64) {
	if reset != 0 {
		f.reset(reset)
	}
	f.enqueue(f.sequencer.progress(f.complete, t.anchor), f.name+fenceSubject, true)
}

// reopen closes a stream after a failure and opens it again.
func (t *term) reopen(ctx context.Context, f *feed, err error) {
	if batchRefused(err) {
		f.batchRefusedAt = time.Now()
	}
	f.publisher.close()
	f.publisher, f.outbox = nil, outbox{}
	t.markUnusable(ctx, f, err)
	t.open(ctx, f)
}
