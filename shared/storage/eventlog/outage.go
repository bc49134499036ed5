package eventlog

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// outage records since when, and why, the relay cannot publish to a stream.
type outage struct {
	since time.Time // zero if there is no outage
	err   error
	// recreations counts how often the stream was recreated during the outage.
	recreations int
}

// shouldRecreate reports whether the stream should be recreated. The wait doubles with each
// recreation that did not help.
func (o outage) shouldRecreate(patience time.Duration, now time.Time) bool {
	return !o.since.IsZero() && !external(o.err) && now.Sub(o.since) >= patience<<min(o.recreations, 8)
}

// with returns the outage with its latest error. An external error restarts the clock: it says
// nothing about how long the stream itself has been unusable.
func (o outage) with(err error, now time.Time) outage {
	if o.since.IsZero() || external(err) || o.err != nil && external(o.err) {
		o.since = now
	}
	o.err = err
	return o
}

// markUnusable records that the relay cannot publish to a stream.
func (t *term) markUnusable(ctx context.Context, f *feed, err error) {
	now := time.Now()
	if f.outage.err == nil || f.outage.err.Error() != err.Error() {
		klog.FromContext(ctx).Error(err, "stream of the event log is unusable, its readers watch etcd meanwhile", "stream", f.name)
	}
	f.outage = f.outage.with(err, now)
	t.metrics.failures.WithLabelValues(string(f.tier)).Inc()
	t.setStream(f.tier, func(s *StreamStatus) {
		if s.Usable || s.Problem == "" {
			s.Since = now
		}
		s.Usable, s.Problem = false, err.Error()
	})
}

// markUsable records that a stream has accepted the first message of a relay.
func (t *term) markUsable(f *feed) {
	now := time.Now()
	f.outage, t.lastUsable = outage{}, now
	f.pause.reset()
	t.setStream(f.tier, func(s *StreamStatus) {
		if !s.Usable {
			s.Since = now
		}
		s.Usable, s.Problem, s.History.MaxBytes = true, "", f.maxBytes
	})
}
