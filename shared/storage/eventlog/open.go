package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"
)

// openResult is a stream that the relay can publish to, or the reason why it cannot.
type openResult struct {
	feed      *feed
	err       error
	stream    jetstream.Stream
	sequencer *sequencer
	sequence  uint64
	limits    limits
	from      int64
	// recreated reports whether the stream was recreated.
	recreated bool
	// reset is the revision of the reset to start with, 0 for none.
	reset int64
	// cluster is the cluster ID of etcd.
	cluster uint64
}

const (
	// openTimeout bounds one attempt to open a stream, natsTimeout one request to NATS.
	openTimeout = 20 * time.Second
	natsTimeout = 3 * time.Second
)

// open opens a stream in the background, after a pause if the stream had an outage.
func (t *term) open(ctx context.Context, f *feed) {
	outage, pause := f.outage, f.pause
	if !outage.since.IsZero() {
		f.pause.next()
	}
	t.background.Go(func() {
		if !outage.since.IsZero() && !pause.wait(ctx) {
			return
		}
		try, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		o, err := t.tryOpen(try, f.name, f.tier, outage)
		o.feed, o.err = f, err
		select {
		case t.openResults <- o:
		case <-ctx.Done():
		}
	})
}

// tryOpen finds or creates a stream and continues its chain. It runs beside the term's
// goroutine and reads only those fields of the term that never change.
func (t *term) tryOpen(ctx context.Context, name string, tier Tier, outage outage) (openResult, error) {
	epoch, err := t.epoch(ctx, t.elected)
	if err != nil {
		return openResult{}, etcdError(err)
	}
	known, cluster, err := records{t.cfg.Etcd, t.cfg.StatePrefix}.read(ctx, name)
	if err != nil {
		return openResult{}, etcdError(err)
	}
	if t.hooks.open != nil {
		t.hooks.open(ctx)
	}
	p := openAttempt{term: t, name: name, tier: tier, epoch: epoch, cluster: cluster}
	if outage.shouldRecreate(t.cfg.StreamPatience, time.Now()) {
		if !p.reachable(ctx) {
			return openResult{}, errUnreachable
		}
		return p.recreate(ctx, "unusable", outage.err, known.History)
	}
	stream, err := p.ensure(ctx)
	if unusable(err) {
		return p.recreate(ctx, "configuration", err, known.History)
	}
	var end tail
	if err == nil {
		end, err = readTail(ctx, stream)
	}
	if err != nil && !external(err) && !p.reachable(ctx) {
		return openResult{}, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if err != nil {
		return openResult{}, err
	}
	now, err := currentPosition(ctx, t.cfg.Etcd, t.cfg.Routes.Prefix())
	if err != nil {
		return openResult{}, etcdError(err)
	}
	anchored, contradicted, err := t.compareTail(ctx, tier, &end)
	if err != nil {
		return openResult{}, etcdError(err)
	}
	switch end.judge(evidence{epoch: epoch, record: known, revision: now.revision, contradicted: contradicted}) {
	case continueStream:
		s := &sequencer{
			incarnation: known.Incarnation, epoch: epoch, subjects: map[string]ID{},
			last: end.last.ID, event: end.chainEnd(), section: end.section, complete: end.complete(),
		}
		o, err := p.result(stream, s, end.sequence)
		switch {
		case anchored == confirmed:
			o.from = min(max(end.anchor.Revision, s.event.Revision), o.from)
		case !s.event.unpublished() && o.from-s.event.Revision <= rereadRevisions:
			o.from = min(s.event.Revision, o.from)
		}
		return o, err
	case startSection:
		if known.Incarnation == 0 {
			known = record{Incarnation: randomID(), History: randomID()}
		}
		_, err := t.elected.guard(ctx, records{prefix: t.cfg.StatePrefix}.put(name, known, cluster))
		if err != nil {
			return openResult{}, etcdError(err)
		}
		o, err := p.result(stream, &sequencer{incarnation: known.Incarnation, epoch: epoch, subjects: map[string]ID{}}, end.sequence)
		o.reset, o.from = now.revision, now.revision
		return o, err
	case recreateStream:
		return p.recreate(ctx, "unfinished", nil, known.History)
	case stepDown:
		if _, err := t.elected.guard(ctx); err != nil {
			return openResult{}, etcdError(err)
		}
		// No other relay can have got a higher epoch from this etcd.
	}
	klog.FromContext(ctx).Info("event log and etcd have different histories", "stream", name,
		"revision", now.revision, "streamRevision", end.last.ID.Revision)
	return p.recreate(ctx, "history", nil, randomID())
}

// compareTail compares the end of a stream with etcd.
func (t *term) compareTail(ctx context.Context, tier Tier, end *tail) (anchored finding, contradicted bool, err error) {
	if t.isReplaced(tier) {
		return unknown, true, nil
	}
	if end.last == nil {
		return unknown, false, nil
	}
	if anchored, err = end.anchor.check(ctx, t.cfg.Etcd, t.cfg.StatePrefix); err != nil || anchored == refuted {
		return anchored, anchored == refuted, err
	}
	if end.event != nil && end.event.Type == typeEvent {
		contradicted, err = contradicts(ctx, t.cfg.Etcd, &end.event.Event)
	}
	return anchored, contradicted, err
}

// openAttempt is one attempt to open a stream.
type openAttempt struct {
	*term
	name    string
	tier    Tier
	epoch   uint64
	cluster uint64
}

// ensure returns the stream with its intended configuration.
func (p *openAttempt) ensure(ctx context.Context) (jetstream.Stream, error) {
	stream, err := p.configure(ctx, p.js.CreateOrUpdateStream)
	if err != nil {
		return nil, fmt.Errorf("create or update: %w", err)
	}
	return stream, nil
}

// configure creates or updates a stream with provide. If NATS has no room for the intended
// history, an existing stream keeps its size, and a new one gets minStreamBytes.
func (p *openAttempt) configure(ctx context.Context, provide func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (jetstream.Stream, error) {
	select {
	case p.configuring <- struct{}{}:
		defer func() { <-p.configuring }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	config := p.cfg.Stream.config(p.name)
	wanted := config.MaxBytes
	stream, refused := provide(ctx, config)
	if !noRoom(refused) {
		return stream, refused
	}
	config.MaxBytes = minStreamBytes
	if before, err := p.js.Stream(ctx, p.name); err == nil {
		config.MaxBytes = before.CachedInfo().Config.MaxBytes
	}
	stream, err := provide(ctx, config)
	if err != nil {
		return nil, refused
	}
	klog.FromContext(ctx).Info("NATS has too little storage for the history of the event log", "stream", p.name,
		"wantedBytes", wanted, "maxBytes", config.MaxBytes)
	return stream, nil
}

// result returns an open stream that continues with s.
func (p *openAttempt) result(stream jetstream.Stream, s *sequencer, sequence uint64) (openResult, error) {
	config := stream.CachedInfo().Config
	o := openResult{stream: stream, sequencer: s, sequence: sequence, limits: pipelined, from: s.complete, cluster: p.cluster}
	if config.Replicas > 1 {
		o.limits = batched
		if !config.AllowAtomicPublish {
			return openResult{}, errOldServer
		}
	}
	if p.hooks.limits != nil {
		o.limits = *p.hooks.limits
	}
	return o, nil
}

// recreate deletes the stream and creates it with a new incarnation, which it first records in
// etcd.
func (p *openAttempt) recreate(ctx context.Context, reason string, cause error, history uint64) (openResult, error) {
	log := klog.FromContext(ctx)
	log.Error(cause, "recreating a stream of the event log", "stream", p.name, "reason", reason)
	if history == 0 {
		history = randomID()
	}
	next := record{Incarnation: randomID(), History: history}
	start := time.Now()
	if _, err := p.elected.guard(ctx, records{prefix: p.cfg.StatePrefix}.put(p.name, next, p.cluster)); err != nil {
		return openResult{}, etcdError(err)
	}
	p.metrics.replaced.WithLabelValues(string(p.tier), reason).Inc()
	if p.hooks.guarded != nil {
		p.hooks.guarded()
	}
	if time.Since(start) >= p.cfg.LeaseTTL/2 {
		return openResult{}, errStalled
	}
	reqCtx, cancel := context.WithTimeout(ctx, natsTimeout)
	err := p.js.DeleteStream(reqCtx, p.name)
	cancel()
	// A stream without a leader may be deleted without a reply.
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, context.DeadlineExceeded) {
		return openResult{}, fmt.Errorf("delete: %w", err)
	}
	stream, err := p.configure(ctx, p.js.CreateStream)
	if err != nil {
		return openResult{}, fmt.Errorf("create: %w", err)
	}
	end, err := readTail(ctx, stream)
	if err != nil {
		return openResult{}, err
	}
	if end.sequence != 0 {
		return openResult{}, errors.New("the stream is not empty after it was deleted")
	}
	now, err := currentPosition(ctx, p.cfg.Etcd, p.cfg.Routes.Prefix())
	if err != nil {
		return openResult{}, etcdError(err)
	}
	o, err := p.result(stream, &sequencer{incarnation: next.Incarnation, epoch: p.epoch, subjects: map[string]ID{}}, 0)
	o.recreated, o.reset, o.from = true, now.revision, now.revision
	return o, err
}

// reachable reports whether NATS can create and delete streams. While NATS starts or lacks a
// quorum, a stream that does not answer need not be broken. The metadata leader immediately
// refuses to create an existing stream with another configuration, which proves that it works.
func (p *openAttempt) reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	other := p.cfg.Stream.config(p.name)
	other.Description += " (test)"
	other.MaxBytes = minStreamBytes // ask nothing about room
	_, err := p.js.CreateStream(ctx, other)
	return err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)
}
