package workload

import (
	"context"
	"fmt"
	"time"

	"triune.dev/tests/bench/load"
)

// A server answers a first call of each kind only once, and a garbage collection may
// coincide with it. So first calls are also made on further starts, which measure nothing
// else.
const (
	furtherStarts = 4
	// QuickStarts is the number of further starts of quick runs.
	QuickStarts = 2
)

const (
	// afterFilling is the minimum time between writing the content and a first call, and
	// afterLoad that between the measurements of full runs and a first call.
	afterFilling = time.Second
	afterLoad    = time.Second
	// afterCall is the same after another first call or a short load.
	afterCall = 100 * time.Millisecond
	// look is how long a server must be nearly idle before a first call, and maxLooks
	// bounds the attempts to find it idle.
	look     = 100 * time.Millisecond
	maxLooks = 20
)

// rest waits before a first call until earlier work is done, such as a garbage collection
// that has begun. It waits at least for after, or for afterFilling if the server was filled
// since the last time, and then until less than a tenth of a core is used.
func (e *Env) rest(ctx context.Context, after time.Duration) error {
	if err := pause(ctx, e.atLeast(after)); err != nil {
		return err
	}
	for range maxLooks {
		before, err := e.clocks()
		if err != nil {
			return err
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
		now, err := e.clocks()
		if err != nil {
			return err
		}
		var used time.Duration
		for _, t := range now.since(before).server {
			used += t
		}
		if used < look/10 {
			return nil
		}
	}
	return nil // it is never idle
}

func (e *Env) atLeast(after time.Duration) time.Duration {
	if e.filled {
		e.filled = false
		return afterFilling
	}
	return after
}

// first prepares the server and measures the first response.
func (r read) first(ctx context.Context, e *Env, after time.Duration, publish Publish) error {
	if err := r.need(e, ctx); err != nil {
		return err
	}
	if err := r.cold(ctx, e, after, publish); err != nil {
		return fmt.Errorf("cold: %w", err)
	}
	return nil
}

// again returns the first call on a further start.
func (r read) again(start int) Workload {
	w := r.workload()
	w.Start, w.Only, w.Slow = start, api, r.apart
	w.Run = func(ctx context.Context, e *Env, publish Publish) error {
		if err := r.first(ctx, e, afterCall, publish); err != nil {
			return err
		}
		return r.known(ctx, e)
	}
	return w
}

// known repeats the requests of the first start, so that the server has the same state at
// the next first call: a request for each object, or two more lists.
func (r read) known(ctx context.Context, e *Env) error {
	n := max(2, r.different)
	conns := e.conns(min(n/2, loadConns))
	defer load.CloseAll(conns)
	next, err := r.next(e)
	if err != nil {
		return err
	}
	if _, err := (load.Closed{MinOps: n, MaxOps: n}).Run(ctx, conns, next); err != nil {
		return fmt.Errorf("after the first call: %w", err)
	}
	return nil
}

var firstCalls = func() []Workload {
	var all []Workload
	for start := range furtherStarts {
		for _, r := range tableReads {
			all = append(all, r.again(start+1))
		}
	}
	return all
}()
