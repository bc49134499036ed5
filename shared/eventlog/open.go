package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"
)

// opened is a stream that a relay can publish to, or why it cannot.
type opened struct {
	feed      *feed
	err       error
	stream    jetstream.Stream
	sequencer *sequencer
	sequence  uint64
	limits    limits
	from      int64
	// anew says that the stream was made anew.
	anew bool
	// reset is the revision to begin with a reset at, 0 for no reset.
	reset int64
	// cluster is etcd's.
	cluster uint64
}

const (
	// openTimeout bounds one attempt to open a stream, askTimeout one question to
	// NATS.
	openTimeout = 20 * time.Second
	askTimeout  = 3 * time.Second
)

// open opens a stream in the background, after a pause if there was trouble.
func (t *term) open(ctx context.Context, f *feed) {
	trouble, pause := f.trouble, f.pause
	if !trouble.since.IsZero() {
		f.pause.next()
	}
	t.opening.Go(func() {
		if !trouble.since.IsZero() && !pause.wait(ctx) {
			return
		}
		try, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		o, err := t.tryOpen(try, f.name, f.tier, trouble)
		o.feed, o.err = f, err
		select {
		case t.opened <- o:
		case <-ctx.Done():
		}
	})
}

// tryOpen finds or makes a stream and takes up its chain. It runs beside the term's
// goroutine and reads only those fields of the term that never change.
func (t *term) tryOpen(ctx context.Context, name string, tier Tier, b trouble) (opened, error) {
	epoch, err := t.epoch(ctx, t.elected)
	if err != nil {
		return opened{}, ofEtcd(err)
	}
	known, cluster, err := records{t.cfg.Etcd, t.cfg.Keys}.read(ctx, name)
	if err != nil {
		return opened{}, ofEtcd(err)
	}
	if t.seams.opening != nil {
		t.seams.opening(ctx)
	}
	p := opening{term: t, name: name, tier: tier, epoch: epoch, cluster: cluster}
	if b.lasting(t.cfg.StreamPatience, time.Now()) {
		if !p.reachable(ctx) {
			return opened{}, errUnreachable
		}
		return p.makeAnew(ctx, "unusable", b.err, known.History)
	}
	stream, err := p.find(ctx)
	if unusable(err) {
		return p.makeAnew(ctx, "configuration", err, known.History)
	}
	var end tail
	if err == nil {
		end, err = readTail(ctx, stream)
	}
	if err != nil && !external(err) && !p.reachable(ctx) {
		return opened{}, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if err != nil {
		return opened{}, err
	}
	now, err := currentPosition(ctx, t.cfg.Etcd, t.cfg.Routes.Prefix())
	if err != nil {
		return opened{}, ofEtcd(err)
	}
	anchored, contradicted, err := t.compare(ctx, tier, &end)
	if err != nil {
		return opened{}, ofEtcd(err)
	}
	switch end.judge(evidence{epoch: epoch, record: known, revision: now.revision, contradicted: contradicted}) {
	case goOn:
		s := &sequencer{
			incarnation: known.Incarnation, epoch: epoch, subjects: map[string]ID{},
			last: end.last.ID, event: end.chain(), section: end.section, complete: end.complete(),
		}
		o, err := p.opened(stream, s, end.sequence)
		switch {
		case anchored == confirmed:
			o.from = min(max(end.anchor.Revision, s.event.Revision), o.from)
		case !s.event.unpublished() && o.from-s.event.Revision <= rereadRevisions:
			o.from = min(s.event.Revision, o.from)
		}
		return o, err
	case openSection:
		if known.Incarnation == 0 {
			known = record{Incarnation: randomID(), History: randomID()}
		}
		_, err := t.elected.guard(ctx, records{keys: t.cfg.Keys}.put(name, known, cluster))
		if err != nil {
			return opened{}, ofEtcd(err)
		}
		o, err := p.opened(stream, &sequencer{incarnation: known.Incarnation, epoch: epoch, subjects: map[string]ID{}}, end.sequence)
		o.reset, o.from = now.revision, now.revision
		return o, err
	case makeAnew:
		return p.makeAnew(ctx, "unfinished", nil, known.History)
	case giveWay:
		if _, err := t.elected.guard(ctx); err != nil {
			return opened{}, ofEtcd(err)
		}
		// Nobody else can have got a higher epoch from this etcd.
	}
	klog.FromContext(ctx).Info("event log tells another history than etcd", "stream", name,
		"revision", now.revision, "streamRevision", end.last.ID.Revision)
	return p.makeAnew(ctx, "history", nil, randomID())
}

// compare looks whether etcd has what a stream ends with.
func (t *term) compare(ctx context.Context, tier Tier, end *tail) (anchored finding, contradicted bool, err error) {
	if t.isReplaced(tier) {
		return unknown, true, nil
	}
	if end.last == nil {
		return unknown, false, nil
	}
	if anchored, err = end.anchor.find(ctx, t.cfg.Etcd, t.cfg.Keys); err != nil || anchored == refuted {
		return anchored, anchored == refuted, err
	}
	if end.event != nil && end.event.Type == typeEvent {
		contradicted, err = contradicts(ctx, t.cfg.Etcd, &end.event.Event)
	}
	return anchored, contradicted, err
}

// opening is one attempt to open a stream.
type opening struct {
	*term
	name    string
	tier    Tier
	epoch   uint64
	cluster uint64
}

// find returns the stream as it should be configured.
func (p *opening) find(ctx context.Context) (jetstream.Stream, error) {
	stream, err := p.fit(ctx, p.js.CreateOrUpdateStream)
	if err != nil {
		return nil, fmt.Errorf("create or update: %w", err)
	}
	return stream, nil
}

// fit makes or changes a stream. Where NATS has no room for the history that it is to
// keep, an existing one keeps as much as before, and a new one leastBytes.
func (p *opening) fit(ctx context.Context, provide func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (jetstream.Stream, error) {
	select {
	case p.fitting <- struct{}{}:
		defer func() { <-p.fitting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	config := p.cfg.Stream.config(p.name)
	wanted := config.MaxBytes
	stream, refused := provide(ctx, config)
	if !noRoom(refused) {
		return stream, refused
	}
	config.MaxBytes = leastBytes
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

// opened returns an open stream that goes on where s is.
func (p *opening) opened(stream jetstream.Stream, s *sequencer, sequence uint64) (opened, error) {
	config := stream.CachedInfo().Config
	o := opened{stream: stream, sequencer: s, sequence: sequence, limits: pipelined, from: s.complete, cluster: p.cluster}
	if config.Replicas > 1 {
		o.limits = batched
		if !config.AllowAtomicPublish {
			return opened{}, errOldServer
		}
	}
	if p.seams.limits != nil {
		o.limits = *p.seams.limits
	}
	return o, nil
}

var (
	errOldServer = errors.New("NATS does not publish in batches, which streams with several replicas need: nats-server 2.12 or newer is needed")
	errStalled   = errors.New("stalled after it had made sure of its election")
	// errUnreachable means that NATS does not decide about streams.
	errUnreachable = errors.New("JetStream does not answer")
	errEtcd        = errors.New("etcd")
)

func ofEtcd(err error) error { return fmt.Errorf("%w: %w", errEtcd, err) }

// makeAnew deletes the stream and makes it again with another incarnation, which
// etcd is told of before.
func (p *opening) makeAnew(ctx context.Context, reason string, cause error, history uint64) (opened, error) {
	log := klog.FromContext(ctx)
	log.Error(cause, "stream of the event log is made anew", "stream", p.name, "reason", reason)
	if history == 0 {
		history = randomID()
	}
	next := record{Incarnation: randomID(), History: history}
	start := time.Now()
	if _, err := p.elected.guard(ctx, records{keys: p.cfg.Keys}.put(p.name, next, p.cluster)); err != nil {
		return opened{}, ofEtcd(err)
	}
	p.metrics.replaced.WithLabelValues(string(p.tier), reason).Inc()
	if p.seams.guarded != nil {
		p.seams.guarded()
	}
	if time.Since(start) >= p.cfg.LeaseTTL/2 {
		return opened{}, errStalled
	}
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	err := p.js.DeleteStream(ask, p.name)
	cancel()
	// Of a stream without a leader, nobody may tell that it is gone.
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, context.DeadlineExceeded) {
		return opened{}, fmt.Errorf("delete: %w", err)
	}
	stream, err := p.fit(ctx, p.js.CreateStream)
	if err != nil {
		return opened{}, fmt.Errorf("create: %w", err)
	}
	end, err := readTail(ctx, stream)
	if err != nil {
		return opened{}, err
	}
	if end.sequence != 0 {
		return opened{}, errors.New("the stream is not empty after it was deleted")
	}
	now, err := currentPosition(ctx, p.cfg.Etcd, p.cfg.Routes.Prefix())
	if err != nil {
		return opened{}, ofEtcd(err)
	}
	o, err := p.opened(stream, &sequencer{incarnation: next.Incarnation, epoch: p.epoch, subjects: map[string]ID{}}, 0)
	o.anew, o.reset, o.from = true, now.revision, now.revision
	return o, err
}

// reachable reports whether NATS can create and delete streams: while it is starting,
// or has no quorum, a stream that does not answer need not be broken. The server that
// decides about streams refuses at once to create an existing one with another
// configuration.
func (p *opening) reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	other := p.cfg.Stream.config(p.name)
	other.Description += " (test)"
	other.MaxBytes = leastBytes // room is not the question
	_, err := p.js.CreateStream(ctx, other)
	return err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)
}

// Error codes of JetStream that its client has no names for.
const (
	codeAccountResources  = 10002
	codeNoPeers           = 10005
	codeResources         = 10023
	codeMaximumStreams    = 10027
	codeMemoryResources   = 10028
	codeNotEnabledAccount = 10039
	codeStorageResources  = 10047
	codeInvalidConfig     = 10052
	codeNotEnabled        = 10076
	codeReplicas          = 10074
	codeSealed            = 10109
	codeMaxBytesRequired  = 10113
	codeNoLimits          = 10120
	codeBatchDisabled     = 10174
	codeBatchIncomplete   = 10176
	codeBatchTooLarge     = 10199
	codeBatchesInFlight   = 10210
)

func errorCode(err error) int {
	var refused jetstream.JetStreamError
	if errors.As(err, &refused) && refused.APIError() != nil {
		return int(refused.APIError().ErrorCode)
	}
	return 0
}

// noRoom reports whether a stream was refused for its size. A cluster says only that
// none of its servers is fit.
func noRoom(err error) bool {
	switch errorCode(err) {
	case codeMemoryResources, codeStorageResources, codeNoPeers:
		return true
	}
	return false
}

// external reports whether the cause of an error lies outside the stream, so that
// making it anew would not help: the connection, JetStream as a whole, permissions,
// storage, or etcd.
func external(err error) bool {
	switch errorCode(err) {
	case codeAccountResources, codeNoPeers, codeResources, codeMaximumStreams, codeMemoryResources,
		codeNotEnabledAccount, codeStorageResources, codeNotEnabled, codeReplicas, codeMaxBytesRequired, codeNoLimits:
		return true
	}
	for _, other := range []error{
		errConnectionLost, errDeposed, errOldServer, errUnreachable, errStalled, errEtcd, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting,
		nats.ErrDisconnected, nats.ErrPermissionViolation, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount,
	} {
		if errors.Is(err, other) {
			return true
		}
	}
	return false
}

// batchRefused reports whether only batches are refused, so that single messages may
// get in. A server limits the batches under way, and others may have begun as many
// without completing them.
func batchRefused(err error) bool {
	switch errorCode(err) {
	case codeBatchDisabled, codeBatchIncomplete, codeBatchTooLarge, codeBatchesInFlight:
		return true
	}
	return false
}

// unusable reports whether an error says that a stream is not configured as it
// should be and cannot be brought to it.
func unusable(err error) bool {
	switch errorCode(err) {
	case codeInvalidConfig, codeSealed:
		return true
	}
	return false
}
