package eventlog

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"

	"triune.dev/shared/etcdstore/kv"
)

// feed is one stream within a term. A goroutine of its own opens it, and no other
// stream waits for that; while it is closed, it gets no events. Everything here
// belongs to the term's goroutine.
type feed struct {
	name    string
	tier    Tier
	trouble trouble
	pause   backoff
	// singlesSince is when a batch was refused as such; messages are published one by
	// one for a minute after that.
	singlesSince time.Time

	// The rest is there while the feed is open.

	publisher *publisher
	stream    jetstream.Stream
	*sequencer
	outbox
	// from is the revision after which etcd has to be watched for this stream. An
	// event between from and complete that the stream lacks is proof that etcd has
	// another history.
	from int64
	// sequence is that of the stream's last message, with what has been sent.
	sequence uint64
	// token is the sequence of the last acknowledged message on the fence subject,
	// and fencing that of one under way, 0 where there is none. The last one was
	// queued at fenced, with behind bytes after it.
	token, fencing uint64
	fenced         time.Time
	behind         int64
	maxAge         time.Duration // of what the stream keeps
	maxBytes       int64
	published      time.Time  // last time that a message was queued
	asked          bool       // somebody waits for progress
	events         []kv.Event // of the batch in work
}

func (f *feed) open() bool { return f.publisher != nil }

// fenceShare bounds the age of the message that fences a pipeline, and what is
// published behind it, to a part of what the stream keeps: it must not vanish.
const fenceShare = 4

// fence returns the headers of a message that is published on its own.
//
// Every message names the last sequence. In a pipeline that is not enough: after one
// message is refused because a successor has published, a later one may fit the
// number that the successor's message has brought about. So a pipelined message also
// names the last message on the fence subject, where each relay publishes before
// anything else. A relay learns that sequence from the acknowledgement and never
// guesses it, so none can name its successor's.
func (f *feed) fence() nats.Header {
	h := nats.Header{
		jetstream.ExpectedStreamHeader:  {f.name},
		jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(f.sequence, 10)},
	}
	if f.token != 0 && f.limits == pipelined {
		h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(f.token, 10)}
		h[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{f.name + fenceSubject}
	}
	return h
}

// Headers of an atomic batch.
const (
	batchIDHeader       = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
)

// batchHeader returns the headers of the i-th of n messages that are published as an
// atomic batch, behind a sequence. The server looks at the expected sequence when
// the batch is complete, before it proposes anything of it.
func (f *feed) batchHeader(after uint64, i, n int) nats.Header {
	h := nats.Header{
		// A tier that can make consumers can have messages of its stream delivered
		// into another one, headers and all: they name the stream they are for.
		jetstream.ExpectedStreamHeader: {f.name},
		batchIDHeader:                  {strconv.FormatUint(f.epoch, 36) + "-" + strconv.FormatUint(after, 36)},
		batchSequenceHeader:            {strconv.Itoa(i + 1)},
	}
	if i == 0 {
		h[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(after, 10)}
	}
	if i == n-1 {
		h[batchCommitHeader] = []string{"1"}
	}
	return h
}

// enqueue puts a message behind those that wait.
func (f *feed) enqueue(m message, subject string, barrier bool) {
	f.published = time.Now()
	size := len(m.Event.Key) + len(m.Event.Value) + len(m.Event.Previous) + messageOverhead/4
	f.behind += int64(size)
	if barrier {
		f.fenced, f.behind = f.published, 0
	}
	f.push(outgoing{message: m, subject: subject, barrier: barrier, size: size})
}

// flush sends what may be sent now. It returns the first failure.
func (t *term) flush(f *feed) error {
	for {
		units, bytes, err := f.publisher.underWay()
		if err != nil {
			return err
		}
		if units == 0 && f.fencing != 0 {
			f.token, f.fencing = f.fencing, 0
			t.recovered(f)
		}
		var messages []outgoing
		if f.fencing == 0 {
			messages = f.outbox.next(units, bytes)
		}
		if messages == nil {
			if f.empty() && f.fencing == 0 || f.publisher.await() {
				return nil
			}
			continue // everything was acknowledged just now
		}
		if err := t.send(f, messages); err != nil {
			return err
		}
	}
}

// send publishes one unit behind its fence.
func (t *term) send(f *feed, messages []outgoing) error {
	for i := range messages {
		if t.seams.publish != nil {
			t.seams.publish(&messages[i].message)
		}
		t.metrics.published(f.tier, &messages[i].message)
	}
	after := f.sequence
	err := f.publisher.send(messages, func(i int) nats.Header {
		m := &messages[i]
		var h nats.Header
		switch {
		case t.seams.fence != nil:
			h = t.seams.fence(f, &m.message)
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
		f.fencing = f.sequence
	}
	return err
}

// begin queues what a relay publishes first: a reset, where the stream cannot be
// continued, and the message that fences off the relays before.
func (t *term) begin(f *feed, reset int64) {
	if reset != 0 {
		f.reset(reset)
	}
	f.enqueue(f.sequencer.progress(f.complete, t.anchor), f.name+fenceSubject, true)
}

// renewFence queues another fence before the stream discards the last one. The
// revision that was queued last must be complete.
func (t *term) renewFence(f *feed) {
	old := f.maxAge > 0 && time.Since(f.fenced) >= f.maxAge/fenceShare
	deep := f.maxBytes > 0 && f.behind >= f.maxBytes/fenceShare
	if f.limits == pipelined && (old || deep) {
		f.enqueue(f.sequencer.progress(f.complete, t.anchor), f.name+fenceSubject, true)
	}
}

func (f *feed) reset(revision int64) {
	f.enqueue(f.sequencer.reset(revision), f.name+resetSubject, false)
}

func (t *term) progress(f *feed, revision int64) {
	f.asked = false
	f.enqueue(f.sequencer.progress(revision, t.anchor), f.name+progressSubject, false)
}

// tell queues events, which are after what the feed tells already.
func (t *term) tell(ctx context.Context, f *feed, events []kv.Event) error {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision {
			n++
		}
		if err := t.tellRevision(ctx, f, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// lookupTimeout bounds a question about a subject; other streams wait meanwhile.
const lookupTimeout = 2 * time.Second

func (t *term) tellRevision(ctx context.Context, f *feed, events []kv.Event) error {
	limit := int(t.cfg.Conn.MaxPayload())
	for i := range events {
		if e := &events[i]; len(e.Key)+len(e.Value)+len(e.Previous)+messageOverhead > limit {
			// etcd takes larger requests than it was said to. Readers get this
			// revision from etcd.
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
		subject := t.cfg.Routes.Of(e.Key).Subject
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

// contradicts reports whether the stream should have an event and lacks it, which
// means that etcd's history is not the one that the stream tells.
func (f *feed) contradicts(e *kv.Event) bool {
	return !f.event.unpublished() && e.Revision > f.event.Revision && e.Revision <= f.complete
}

// trouble says since when, and why, a stream cannot be published to.
type trouble struct {
	since time.Time // zero where there is none
	err   error
	// remade is how often the stream was made anew meanwhile, without avail.
	remade int
}

// lasting reports whether the stream should be made anew. Each time that it was
// without avail, the next one takes twice as long.
func (b trouble) lasting(patience time.Duration, now time.Time) bool {
	return !b.since.IsZero() && !external(b.err) && now.Sub(b.since) >= patience<<min(b.remade, 8)
}

// started returns the trouble with its latest error. An external error restarts the
// clock: it says nothing about how long the stream itself has been unusable.
func (b trouble) started(err error, now time.Time) trouble {
	if b.since.IsZero() || external(err) || b.err != nil && external(b.err) {
		b.since = now
	}
	b.err = err
	return b
}
