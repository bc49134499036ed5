package eventlog

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// position returns the current position of etcd.
func (l *readLoop) position() (position, error) {
	ctx, cancel := context.WithTimeout(l.ctx, etcdTimeout)
	defer cancel()
	return currentPosition(ctx, l.cfg.Etcd, l.cfg.Routes.Prefix())
}

// openWatch makes etcd the source, or opens its watch again after a failure, from a revision
// on. Events that the sink has already are not applied again.
func (l *readLoop) openWatch(after int64) {
	l.closeWatch()
	if !l.useEtcd {
		l.useEtcd = true
		l.setSource(SourceEtcd)
	}
	ctx, cancel := context.WithCancel(l.ctx)
	l.cancelWatch, l.lastResponse, l.watchAfter = cancel, time.Now(), after
	l.watch = l.etcd.Watch(ctx, kv.WatchOptions{Ranges: l.cfg.Routes.watchedRanges(l.cfg.Tier), After: after})
	l.retry.Reset(progressRetry)
}

func (l *readLoop) closeWatch() {
	if l.cancelWatch != nil {
		l.cancelWatch()
	}
	l.watch, l.cancelWatch = nil, nil
}

// switchToEtcd makes etcd the source, from the revision of the sink on.
func (l *readLoop) switchToEtcd() {
	l.flush()
	now, err := l.position()
	after, contradicted := l.revision, false
	if err == nil {
		after, contradicted, err = l.compare()
	}
	switch {
	case err != nil:
		// The next tick tries again.
		l.closeWatch()
		if !l.useEtcd {
			l.useEtcd = true
			l.setSource(SourceEtcd)
		}
	case contradicted, l.isReplaced(now):
		l.onReplaced(now)
	default:
		l.updateStatus(func(s *Status) { s.highest = max(s.highest, now.revision) })
		l.switchRevision = now.revision
		l.openWatch(after)
	}
}

// compare compares etcd's history with that of the sink. It returns the revision from which to
// watch etcd. If that is before the sink's revision, the events in between are compared, too:
// etcd must have none that the sink lacks.
func (l *readLoop) compare() (after int64, contradicted bool, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, etcdTimeout)
	defer cancel()
	if l.lastEvent.Kind != 0 {
		if contradicted, err = contradicts(ctx, l.cfg.Etcd, &l.lastEvent); err != nil || contradicted {
			return 0, contradicted, err
		}
	}
	found, err := l.anchor.check(ctx, l.cfg.Etcd, l.cfg.StatePrefix)
	if err != nil {
		return 0, false, err
	}
	switch {
	case found == confirmed:
		return min(l.revision, max(l.lastEventRevision, l.anchor.Revision)), false, nil
	case found == unknown && l.revision-l.lastEventRevision <= rereadRevisions:
		return l.lastEventRevision, false, nil
	}
	return l.revision, found == refuted, nil
}

// contradicted reports whether etcd lacks an event. It also returns true if etcd does not
// answer or has compacted the event.
func (l *readLoop) contradicted(e *kv.Event) bool {
	ctx, cancel := context.WithTimeout(l.ctx, etcdTimeout)
	defer cancel()
	if _, err := l.cfg.Etcd.Get(ctx, e.Key, clientv3.WithRev(max(e.Revision-1, 1)), clientv3.WithCountOnly()); err != nil {
		return true
	}
	contradicted, err := contradicts(ctx, l.cfg.Etcd, e)
	return err != nil || contradicted
}

// isReplaced reports whether etcd has another history than the sink.
func (l *readLoop) isReplaced(now position) bool {
	return now.cluster != l.cluster || now.revision < l.revision
}

// onReplaced continues with etcd's new history, from its current revision on.
func (l *readLoop) onReplaced(now position) {
	klog.FromContext(l.ctx).Info("history of etcd was replaced", "revision", l.revision, "current", now.revision)
	l.updateStatus(func(s *Status) { s.Resets++; s.highest = now.revision })
	l.replacedIncarnation, l.record, l.replacedRevision = l.record.Incarnation, record{}, now.revision
	l.resync()
	l.restart(now)
}

// onEtcd handles a response of etcd's watch.
func (l *readLoop) onEtcd(resp kv.Response) {
	batch, err := l.watch.Accept(resp)
	l.lastResponse = time.Now()
	var compacted *kv.CompactedError
	switch {
	case errors.As(err, &compacted) && l.watchAfter < l.revision:
		l.openWatch(l.revision) // the events to compare are compacted
		return
	case errors.As(err, &compacted):
		l.onCompacted()
		return
	case err != nil:
		l.onEnded(err)
		return
	}
	if l.watch.Waiting() {
		l.requestProgress()
	}
	if batch.Revision <= l.revision && len(batch.Events) == 0 && !batch.Progress {
		return
	}
	wanted := batch.Events[:0]
	for _, e := range batch.Events {
		switch {
		case !l.wants(e.Key):
		case e.Revision > l.revision:
			wanted = append(wanted, e)
		case e.Revision > l.lastEventRevision:
			// The sink was told that there is nothing until l.revision.
			if now, err := l.position(); err == nil {
				l.onReplaced(now)
			} else {
				l.closeWatch()
			}
			return
		}
	}
	if batch.Revision < l.revision || batch.Revision == l.revision && !batch.Progress {
		return // events for comparison only
	}
	l.apply(kv.Batch{Events: wanted, Revision: max(batch.Revision, l.revision), Progress: len(wanted) == 0})
	if batch.Progress {
		l.progressWanted = false
	}
	l.maybeSwitchToStream()
}

// onEnded closes a watch of etcd that has ended; the next tick opens another one.
func (l *readLoop) onEnded(err error) {
	log := klog.FromContext(l.ctx)
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		log = log.V(2)
	}
	log.Info("watch of etcd ended", "revision", l.revision, "err", err)
	l.closeWatch()
}

// onCompacted continues at etcd's current revision, because neither source has the events
// before it.
func (l *readLoop) onCompacted() {
	now, err := l.position()
	if err != nil {
		l.closeWatch()
		return
	}
	klog.FromContext(l.ctx).Info("history is compacted", "after", l.revision, "current", now.revision)
	l.updateStatus(func(s *Status) { s.Resets++ })
	l.restart(now)
}
