package eventlog

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// onStream handles a message of the stream and all others that have arrived, so that the sink
// gets them in one batch.
func (l *readLoop) onStream(d delivery) {
	answered := l.receive(d)
	for range maxBatchMessages {
		if l.paused {
			break
		}
		select {
		case d = <-l.subscription.deliveries:
			answered = l.receive(d) || answered
			continue
		default:
		}
		break
	}
	if l.useEtcd || l.checker == nil {
		return
	}
	at, _ := l.checker.verifiedTo()
	switch {
	case len(l.pending) > 0:
		events := l.pending
		l.pending = nil
		l.apply(kv.Batch{Events: events, Revision: max(at, l.revision)})
	case at > l.revision || answered:
		l.apply(kv.Batch{Revision: max(at, l.revision), Progress: true})
	}
	if answered {
		l.progressWanted = false
	}
}

// receive verifies one delivery. It reports whether it was a progress message.
func (l *readLoop) receive(d delivery) (progress bool) {
	l.lastReceived = time.Now()
	if d.restarted {
		// The following messages begin at the end of the stream. Only etcd has those between
		// the lost consumer and that end.
		if !l.useEtcd {
			l.switchToEtcd()
		}
		l.checker, l.messageCount = l.hooks.newChecker(), 0
		return false
	}
	if l.checker == nil {
		return false // sent before the chain broke
	}
	m, err := decodeMessage(d.msg.Data())
	if err != nil {
		l.updateStatus(func(s *Status) { s.Refused++ })
		klog.FromContext(l.ctx).V(2).Info("refused a message of the event log", "stream", l.stream, "err", err)
		return false
	}
	if !l.hooks.blind && !l.knownIncarnation(&m) {
		return false
	}
	l.messageCount++
	if m.Anchor.Revision != 0 {
		l.anchor = m.Anchor
	}
	s, err := l.checker.accept(&m, d.msg)
	if err != nil {
		klog.FromContext(l.ctx).Info("event log has a gap", "stream", l.stream, "err", err)
		l.updateStatus(func(s *Status) { s.Gaps++ })
		l.leaveStream()
		return false
	}
	if l.useEtcd {
		l.considerStream()
		return false
	}
	l.lastVerified = time.Now()
	at, _ := l.checker.verifiedTo()
	if s.reset && at > l.revision {
		// The relay lost events that the sink does not have. etcd may still have them.
		l.switchToEtcd()
		l.considerStream()
		return false
	}
	for _, e := range s.events {
		if e.Revision > l.revision {
			l.pending = append(l.pending, e)
		}
	}
	return m.Type == typeProgress
}

// knownIncarnation reports whether a message belongs to the stream's incarnation, which etcd
// confirms. If etcd confirms another incarnation, the stream was recreated; if the history
// changed as well, the relay has found etcd's history replaced.
func (l *readLoop) knownIncarnation(m *message) bool {
	switch m.Incarnation {
	case l.record.Incarnation:
		return true
	case l.replacedIncarnation:
		// A stream that was behind when etcd was restored is not recreated. It is accepted
		// again once it has an event after the restore that etcd has, too.
		if m.Type != typeEvent || m.ID.Revision <= l.replacedRevision || l.contradicted(&m.Event) {
			return false
		}
		l.replacedIncarnation = 0
	}
	ctx, cancel := context.WithTimeout(l.ctx, etcdTimeout)
	defer cancel()
	known, _, err := records{etcd: l.cfg.Etcd, prefix: l.cfg.StatePrefix}.read(ctx, l.stream)
	switch {
	case err != nil:
		l.leaveStream() // and try again
		return false
	case known.Incarnation != m.Incarnation:
		l.updateStatus(func(s *Status) { s.Refused++ })
		return false
	case l.record.Incarnation == 0:
		l.record = known
		return true
	case l.record.History == known.History:
		klog.FromContext(l.ctx).Info("stream of the event log was recreated", "stream", l.stream, "revision", l.revision)
		l.record = known
		l.leaveStream()
		return false
	}
	if now, err := l.position(); err == nil {
		l.onReplaced(now)
		l.record = known
	} else {
		l.resync()
	}
	return false
}

// considerStream checks, while etcd is the source, whether the stream can take over. If the
// stream is at least as far as etcd, it is paused until etcd catches up. etcd has to confirm the
// position now, even if it did before: it may have been restored meanwhile, and the stream may
// have messages that another relay has published since. A stream without a relay does not reach
// the revision that etcd had when it became the source, or has no message beyond the one that
// was already there.
func (l *readLoop) considerStream() {
	if l.checker == nil || !l.useEtcd {
		return
	}
	at, ok := l.checker.verifiedTo()
	if !ok || at < max(l.revision, l.switchRevision) {
		return
	}
	if l.messageCount == 1 && !l.hooks.blind {
		l.requestRelayProgress()
		return
	}
	l.updateStatus(func(s *Status) { s.highest = max(s.highest, at) })
	l.paused, l.pausedAt = true, time.Now()
	if at > l.revision {
		l.requestProgress()
		return
	}
	// A watch that starts after the current revision is silent while nothing happens.
	now, err := l.position()
	contradicted := false
	if err == nil {
		_, contradicted, err = l.compare()
	}
	switch {
	case err != nil: // paused until etcd answers, or for too long
	case contradicted, l.isReplaced(now):
		l.onReplaced(now)
	default:
		l.maybeSwitchToStream()
	}
}

// maybeSwitchToStream switches to the stream if it is paused at a revision that etcd's watch
// has reached.
func (l *readLoop) maybeSwitchToStream() {
	if !l.paused || !l.useEtcd {
		return
	}
	if at, ok := l.checker.verifiedTo(); ok && l.revision >= at {
		l.switchToStream()
	}
}

// switchToStream makes the stream the source. Its events up to l.revision are not applied
// again.
func (l *readLoop) switchToStream() {
	l.closeWatch()
	l.useEtcd, l.paused, l.lastVerified = false, false, time.Now()
	l.setSource(SourceStream)
}

// leaveStream verifies the stream again from its end, with etcd as the source meanwhile.
func (l *readLoop) leaveStream() {
	l.resync()
	if !l.useEtcd {
		l.switchToEtcd()
	}
}

// resync drops the state of the stream and verifies it again from its end.
func (l *readLoop) resync() {
	l.checker, l.paused, l.lastReceived = nil, false, time.Now()
	if l.subscription != nil {
		l.subscription.restart()
	}
}
