package workload

import (
	"context"
	"fmt"
	"time"

	"triune.dev/tests/bench/load"
)

// A server answers a first call of each kind once, and a collection of garbage falls into
// it or does not. So first calls are made on further starts, too, which measure nothing
// else.
const (
	furtherStarts = 4
	// QuickStarts is how many of them quick runs make.
	QuickStarts = 2
)

const (
	// afterFilling is how long a server is left alone at least after the content was
	// written, and afterLoad after what full runs measure between first calls.
	afterFilling = time.Second
	afterLoad    = time.Second
	// afterCall is the same after another first call, or a short load.
	afterCall = 100 * time.Millisecond
	// look is how long a server has next to nothing to do before it is asked something,
	// and maxLooks how often that is looked for.
	look     = 100 * time.Millisecond
	maxLooks = 20
)

// rest leaves the server alone before a first call: what came before has left something
// to do, which is not the call's, such as a collection of garbage that has begun. It
// takes as long as after, or as afterFilling if the server was filled since the last
// time; and until less than a tenth of a core is used.
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
	return nil // it never has nothing to do
}

func (e *Env) atLeast(after time.Duration) time.Duration {
	if e.filled {
		e.filled = false
		return afterFilling
	}
	return after
}

// first prepares the server, and measures the first answer.
func (r read) first(ctx context.Context, e *Env, after time.Duration, publish Publish) error {
	if err := r.need(e, ctx); err != nil {
		return err
	}
	if err := r.cold(ctx, e, after, publish); err != nil {
		return fmt.Errorf("cold: %w", err)
	}
	return nil
}

// again is the first call on a further start.
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

// known leaves the server with what it knows on the first start when the next first call
// is made: each object has been asked for, or the list once more and once after that.
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
