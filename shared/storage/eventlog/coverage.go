package eventlog

import (
	"context"
	"fmt"
	"math"
	"sync"
)

// coverage records the last event on each subject, for all events after a certain revision. The
// reader observes new events as they arrive, and can extend the coverage into the past by
// reading the stream. Coverage proves that no event followed the last one on a subject.
type coverage struct {
	mu    sync.Mutex
	begun bool             // guarded by mu
	from  int64            // complete after this revision; guarded by mu
	last  map[string]int64 // subject to revision; guarded by mu
}

// restart clears the coverage; events after from will be observed.
func (c *coverage) restart(from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.from, c.last = true, from, map[string]int64{}
}

// observe records an event. Events are observed in order.
func (c *coverage) observe(subject string, revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[subject] = revision
}

// extend adds the last events after from, which were read from the stream.
func (c *coverage) extend(from, until int64, last map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until < c.from || from >= c.from {
		return
	}
	for subject, revision := range last {
		if _, ok := c.last[subject]; !ok {
			c.last[subject] = revision
		}
	}
	c.from = from
}

// lastEvent returns the revision of the last event on a subject, or 0, and the revision after
// which that is known.
func (c *coverage) lastEvent(subject string) (last, from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		return 0, math.MaxInt64
	}
	return c.last[subject], c.from
}

// proveQuiet returns nil if no event on a subject followed shown, the last one that the stream
// shows, up to upTo, which the sink has reached.
func (r *Reader) proveQuiet(ctx context.Context, p *storedStream, subject string, shown ID, upTo int64) error {
	last, from := r.coverage.lastEvent(subject)
	if last <= shown.Revision && from > shown.Revision {
		// One read of the whole stream proves it for all subjects.
		if err := r.extendCoverage(ctx, p, shown.Revision, from); err != nil {
			return err
		}
		last, from = r.coverage.lastEvent(subject)
	}
	switch {
	case last <= shown.Revision && from <= shown.Revision:
		return nil
	case last > upTo:
		// An event has arrived since. It names its predecessor.
		start, err := p.sequenceAfter(ctx, upTo)
		if err != nil {
			return err
		}
		m, _, err := p.firstAt(ctx, start, subject)
		if err != nil {
			return err
		}
		if m != nil && (m.OnSubject == shown || shown.unpublished() && m.OnSubject.Revision <= shown.Revision) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s lacks an event between revisions %d and %d", errNoHistory, subject, shown.Revision, upTo)
}

// maxCoverageMessages bounds the messages of all subjects that one call of Since may read to
// prove that its own subject is quiet. Reading that many takes half a second.
const maxCoverageMessages = 50_000

// extendCoverage reads all events of the stream in a range of revisions and verifies their
// chain. One goroutine reads at a time, for all. It returns errNoHistory if the range is too
// large; the caller then asks etcd.
func (r *Reader) extendCoverage(ctx context.Context, p *storedStream, after, until int64) error {
	select {
	case r.extending <- struct{}{}:
		defer func() { <-r.extending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, from := r.coverage.lastEvent(""); from <= after {
		return nil // another goroutine did it meanwhile
	}
	start, err := p.sequenceAfter(ctx, after)
	if err != nil {
		return err
	}
	if p.oldest > after {
		return errNoHistory
	}
	last := map[string]int64{}
	event, complete, first := ID{}, after, true
	all := *p
	all.maxMessages = r.hooks.maxCoverageMessages
	err = all.each(ctx, start, "", func(m *message) (bool, error) {
		if first && m.InStream.Revision > after || !first && m.InStream != event {
			return false, fmt.Errorf("%w: %s follows %s, last seen %s", errNoHistory, m.ID, m.InStream, event)
		}
		first = false
		if event = m.InStream; m.Type != typeProgress {
			event = m.ID
		}
		if m.Type == typeEvent && m.ID.Revision <= until {
			last[r.cfg.Routes.Route(m.Event.Key).Subject] = m.ID.Revision
		}
		if m.ends() {
			complete = m.ID.Revision
		}
		return complete < until, nil
	})
	if err != nil {
		return err
	}
	if complete < until {
		return fmt.Errorf("%w: the stream ends at revision %d", errNoHistory, complete)
	}
	r.coverage.extend(after, until, last)
	return nil
}
