package workload

import (
	"context"
	"time"

	"triune.dev/tests/bench/load"
)

// The load of a workload is on once more for its profile, apart from what is measured,
// for profileFor, which is a little longer than the profile.
const (
	profileFor    = 5 * time.Second
	profileLength = 4 * time.Second
)

// profile runs a load again under the profiler, if profiles are asked for. The load
// that failed here has been measured before; the profile is left out then.
func (e *Env) profile(ctx context.Context, again func(context.Context) error) {
	if e.Profile != nil {
		e.Profile(ctx, profileLength, again)
	}
}

// profileIdle is profile for a server that is left alone, which takes longer to see.
func (e *Env) profileIdle(ctx context.Context) {
	if e.Profile != nil {
		const length = 30 * time.Second
		e.Profile(ctx, length, func(ctx context.Context) error { return pause(ctx, length) })
	}
}

// profileReads is profile for requests that change nothing.
func (e *Env) profileReads(ctx context.Context, conns []*load.Conn, next load.Next) {
	e.profile(ctx, func(ctx context.Context) error {
		_, err := load.Closed{For: profileFor}.Run(ctx, conns, next)
		return err
	})
}

// profileWrites is profile for a load that writes. A server that is not profiled has it
// once more, too, or it would hold less afterwards than the others; the floor holds
// nothing.
func (e *Env) profileWrites(ctx context.Context, again func(context.Context) error) error {
	if e.Profile == nil && e.Profiling && !e.Subject.Floor {
		return again(ctx)
	}
	e.profile(ctx, again)
	return nil
}
