package eventlog

import (
	"context"
	"fmt"
	"math"
	"sync"
)

// coverage is what a reader knows about the last event on each subject: from a
// revision on it has seen all events, as they came or, before it began, by
// reading the whole stream back. It proves that nothing followed the last event
// that a subject shows.
type coverage struct {
	mu    sync.Mutex
	begun bool             // guarded by mu
	from  int64            // guarded by mu
	last  map[string]int64 // subject to revision, guarded by mu
}

// restart forgets everything; events after from will be seen.
func (c *coverage) restart(from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.from, c.last = true, from, map[string]int64{}
}

// saw notes events in order.
func (c *coverage) saw(subject string, revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[subject] = revision
}

// extend adds what was read back: the last events after from.
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

// of returns the revision of a subject's last event, 0 if there was none, and
// since when that is known.
func (c *coverage) of(subject string) (last, from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		return 0, math.MaxInt64
	}
	return c.last[subject], c.from
}

// quiet returns nil if there was no event on a subject after the last one that
// the stream shows and until upTo, which the sink has reached.
func (r *Reader) quiet(ctx context.Context, p *past, subject string, shown ID, upTo int64) error {
	last, from := r.covered.of(subject)
	if last <= shown.Revision && from > shown.Revision {
		// One reading of everything proves it for all subjects.
		if err := r.lookBack(ctx, p, shown.Revision, from); err != nil {
			return err
		}
		last, from = r.covered.of(subject)
	}
	switch {
	case last <= shown.Revision && from <= shown.Revision:
		return nil
	case last > upTo:
		// An event has come since. It names the one before.
		start, err := p.find(ctx, upTo)
		if err != nil {
			return err
		}
		m, _, err := p.at(ctx, start, subject)
		if err != nil {
			return err
		}
		if m != nil && (m.OnSubject == shown || shown.unpublished() && m.OnSubject.Revision <= shown.Revision) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s lacks an event between revisions %d and %d", errNoHistory, subject, shown.Revision, upTo)
}

// lookBackMessages bounds what somebody who resumes may have read of all subjects to
// prove that nothing happened on his. Half a second is enough for so many.
const lookBackMessages = 50_000

// lookBack reads all events of the stream after one revision and until another,
// and verifies their chain. One reads at a time, for all. Where that is too much,
// etcd has to be asked.
func (r *Reader) lookBack(ctx context.Context, p *past, after, until int64) error {
	select {
	case r.lookingBack <- struct{}{}:
		defer func() { <-r.lookingBack }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, from := r.covered.of(""); from <= after {
		return nil // somebody else did
	}
	start, err := p.find(ctx, after)
	if err != nil {
		return err
	}
	if p.oldest > after {
		return errNoHistory
	}
	last := map[string]int64{}
	event, complete, first := ID{}, after, true
	all := *p
	all.most = r.seams.lookBack
	err = all.each(ctx, start, "", func(m *message) (bool, error) {
		if first && m.InStream.Revision > after || !first && m.InStream != event {
			return false, fmt.Errorf("%w: %s follows %s, last seen %s", errNoHistory, m.ID, m.InStream, event)
		}
		first = false
		if event = m.InStream; m.Type != typeProgress {
			event = m.ID
		}
		if m.Type == typeEvent && m.ID.Revision <= until {
			last[r.cfg.Routes.Of(m.Event.Key).Subject] = m.ID.Revision
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
	r.covered.extend(after, until, last)
	return nil
}
