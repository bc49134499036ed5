package workload

import (
	"context"
	"time"

	"triune.dev/tests/bench/load"
)

// The load of a workload is repeated for its profile, after the measurement, for
// profileFor, which is a little longer than the profile.
const (
	profileFor    = 5 * time.Second
	profileLength = 4 * time.Second
)

// profile repeats a load under the profiler, if profiles are wanted. If the load fails
// here, only the profile is missing.
func (e *Env) profile(ctx context.Context, again func(context.Context) error) {
	if e.Profile != nil {
		e.Profile(ctx, profileLength, again)
	}
}

// profileIdle is profile for an idle server, which takes longer.
func (e *Env) profileIdle(ctx context.Context) {
	if e.Profile != nil {
		const length = 30 * time.Second
		e.Profile(ctx, length, func(ctx context.Context) error { return pause(ctx, length) })
	}
}

// profileReads is profile for requests without changes.
func (e *Env) profileReads(ctx context.Context, conns []*load.Conn, next load.Next) {
	e.profile(ctx, func(ctx context.Context) error {
		_, err := load.Closed{For: profileFor}.Run(ctx, conns, next)
		return err
	})
}

// profileWrites is profile for a load that writes. Servers that are not profiled get the
// load, too, so that all hold the same afterwards; the floor stores nothing.
func (e *Env) profileWrites(ctx context.Context, again func(context.Context) error) error {
	if e.Profile == nil && e.Profiling && !e.Subject.Floor {
		return again(ctx)
	}
	e.profile(ctx, again)
	return nil
}
