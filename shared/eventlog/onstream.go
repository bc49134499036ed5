package eventlog

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"triune.dev/shared/etcdstore/kv"
)

// onStream takes a message of the stream, and as many more as are there, so that
// the sink gets them in one batch.
func (f *following) onStream(r received) {
	answered := f.take(r)
	for range drainMessages {
		if f.held {
			break
		}
		select {
		case r = <-f.subscription.out:
			answered = f.take(r) || answered
			continue
		default:
		}
		break
	}
	if f.useEtcd || f.check == nil {
		return
	}
	at, _ := f.check.position()
	switch {
	case len(f.pending) > 0:
		events := f.pending
		f.pending = nil
		f.apply(kv.Batch{Events: events, Revision: max(at, f.revision)})
	case at > f.revision || answered:
		f.apply(kv.Batch{Revision: max(at, f.revision), Progress: true})
	}
	if answered {
		f.asked = false
	}
}

// take verifies one message. It returns true for progress.
func (f *following) take(r received) (progress bool) {
	f.received = time.Now()
	if r.fresh {
		// What follows begins at the end of the stream. What was on its way between
		// the consumer that was lost and that end only etcd can tell.
		if !f.useEtcd {
			f.toEtcd()
		}
		f.check, f.said = f.seams.checker(), 0
		return false
	}
	if f.check == nil {
		return false // what was under way when the chain broke
	}
	m, err := decodeMessage(r.m.Data())
	if err != nil {
		f.note(func(s *Status) { s.Refused++ })
		klog.FromContext(f.ctx).V(2).Info("refused a message of the event log", "stream", f.stream, "err", err)
		return false
	}
	if !f.seams.blind && !f.knownIncarnation(&m) {
		return false
	}
	f.said++
	if m.Anchor.Revision != 0 {
		f.anchor = m.Anchor
	}
	s, err := f.check.accept(&m, r.m)
	if err != nil {
		klog.FromContext(f.ctx).Info("event log has a gap", "stream", f.stream, "err", err)
		f.note(func(s *Status) { s.Gaps++ })
		f.leaveStream()
		return false
	}
	if f.useEtcd {
		f.verified()
		return false
	}
	f.heard = time.Now()
	at, _ := f.check.position()
	if s.reset && at > f.revision {
		// The relay could not tell something that the sink does not have.
		// Perhaps etcd still can.
		f.toEtcd()
		f.verified()
		return false
	}
	for _, e := range s.events {
		if e.Revision > f.revision {
			f.pending = append(f.pending, e)
		}
	}
	return m.Type == typeProgress
}

// verified looks, while etcd is the source, whether the stream is a source
// again: where it is as far as etcd or farther, it is held for etcd to reach it. etcd
// has to confirm it now, even if it has told as much before: it may have been restored
// meanwhile, and the stream tell what others have written since.
// A stream that nobody publishes on does not get as far as etcd was when it
// became the source, or it does and says no more than the message that was there
// already.
func (f *following) verified() {
	if f.check == nil || !f.useEtcd {
		return
	}
	at, ok := f.check.position()
	if !ok || at < max(f.revision, f.target) {
		return
	}
	if f.said == 1 && !f.seams.blind {
		f.askRelay()
		return
	}
	f.note(func(s *Status) { s.heard = max(s.heard, at) })
	f.held, f.heldSince = true, time.Now()
	if at > f.revision {
		f.ask()
		return
	}
	// A watch from the next revision on is silent where nothing happens.
	now, err := f.position()
	contradicted := false
	if err == nil {
		_, contradicted, err = f.compare()
	}
	switch {
	case err != nil: // held until etcd answers, or for too long
	case contradicted, f.replaced(now):
		f.startOver(now)
	default:
		f.tryStream()
	}
}

// knownIncarnation reports whether a message belongs to the stream's incarnation,
// which etcd confirms. Another one that etcd confirms is that of a stream that was
// made anew; if its history is another one, too, the relay has found etcd's replaced.
func (f *following) knownIncarnation(m *message) bool {
	switch m.Incarnation {
	case f.record.Incarnation:
		return true
	case f.banned:
		// A stream that was behind when etcd was restored is not made anew. It
		// is taken again when it tells of an event after the restore that etcd
		// has, too.
		if m.Type != typeEvent || m.ID.Revision <= f.since || f.contradicted(&m.Event) {
			return false
		}
		f.banned = 0
	}
	ctx, cancel := context.WithTimeout(f.ctx, etcdTimeout)
	defer cancel()
	known, _, err := records{etcd: f.cfg.Etcd, keys: f.cfg.Keys}.read(ctx, f.stream)
	switch {
	case err != nil:
		f.leaveStream() // and try again
		return false
	case known.Incarnation != m.Incarnation:
		f.note(func(s *Status) { s.Refused++ })
		return false
	case f.record.Incarnation == 0:
		f.record = known
		return true
	case f.record.History == known.History:
		klog.FromContext(f.ctx).Info("stream of the event log was made anew", "stream", f.stream, "revision", f.revision)
		f.record = known
		f.leaveStream()
		return false
	}
	if now, err := f.position(); err == nil {
		f.startOver(now)
		f.record = known
	} else {
		f.distrust()
	}
	return false
}

// leaveStream verifies the stream from its end again, with etcd as the source
// meanwhile.
func (f *following) leaveStream() {
	f.distrust()
	if !f.useEtcd {
		f.toEtcd()
	}
}
