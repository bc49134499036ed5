package load

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"triune.dev/tests/bench/stats"
)

// Result is the result of a successful run.
type Result struct {
	Ops      int
	Wall     time.Duration
	P50, P99 time.Duration
	// Bodies counts the bytes of all response bodies, Wire all bytes of the connections in
	// both directions.
	Bodies, Wire int64
}

// Rate returns operations per second.
func (r Result) Rate() float64 {
	if r.Wall <= 0 {
		return 0
	}
	return float64(r.Ops) / r.Wall.Seconds()
}

// Closed is a closed loop: it runs until For has passed and MinOps have been started, but
// never more than MaxOps (0: no limit).
type Closed struct {
	For            time.Duration
	MinOps, MaxOps int
}

// Next returns the i-th request of a run, counted from 0. It is called concurrently.
type Next func(i int) Request

// Run sends requests, one at a time on each connection, and returns when all have been
// answered, so that all of the server's work for a run is measured.
func (l Closed) Run(ctx context.Context, conns []*Conn, next Next) (Result, error) {
	begin := time.Now()
	var started atomic.Int64
	take := func() (int, bool) {
		i := int(started.Add(1) - 1)
		if l.MaxOps > 0 && i >= l.MaxOps {
			return 0, false
		}
		return i, i < l.MinOps || time.Since(begin) < l.For
	}
	return drive(ctx, conns, func(ctx context.Context, do func(i int, due time.Time) error) error {
		for {
			i, ok := take()
			if !ok {
				return nil
			}
			if err := do(i, time.Now()); err != nil {
				return err
			}
		}
	}, next)
}

// Paced is an open loop: requests are due at even intervals, even if the server does not
// keep up, and latencies count from when requests are due.
type Paced struct {
	PerSecond float64
	For       time.Duration
}

// Run sends requests until For has passed or ctx has ended, and waits for outstanding
// responses. An ended ctx is not an error.
func (l Paced) Run(ctx context.Context, conns []*Conn, next Next) (Result, error) {
	begin := time.Now()
	interval := time.Duration(float64(time.Second) / l.PerSecond)
	var started atomic.Int64
	stop := ctx.Done()
	return drive(context.WithoutCancel(ctx), conns, func(ctx context.Context, do func(i int, due time.Time) error) error {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			i := int(started.Add(1) - 1)
			offset := time.Duration(i) * interval
			if offset >= l.For {
				return nil
			}
			due := begin.Add(offset)
			timer.Reset(time.Until(due))
			select {
			case <-stop:
				return nil
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
			if err := do(i, due); err != nil {
				return err
			}
		}
	}, next)
}

// drive runs one worker for each connection. The first error stops all of them.
func drive(ctx context.Context, conns []*Conn, worker func(context.Context, func(int, time.Time) error) error, next Next) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin, wire := time.Now(), totalWire(conns)
	var bodies atomic.Int64
	latencies := make([][]time.Duration, len(conns))
	var workers sync.WaitGroup
	for w, conn := range conns {
		buffer := make([]byte, 64<<10)
		workers.Go(func() {
			err := worker(ctx, func(i int, due time.Time) error {
				n, err := conn.Do(ctx, next(i), buffer)
				if err != nil {
					return err
				}
				bodies.Add(n)
				latencies[w] = append(latencies[w], time.Since(due))
				return nil
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	all := slices.Concat(latencies...)
	slices.Sort(all)
	return Result{
		Ops: len(all), Wall: time.Since(begin),
		P50: stats.Percentile(all, 0.50), P99: stats.Percentile(all, 0.99),
		Bodies: bodies.Load(), Wire: totalWire(conns) - wire,
	}, nil
}

func totalWire(conns []*Conn) int64 {
	var n int64
	for _, c := range conns {
		n += c.Wire()
	}
	return n
}
