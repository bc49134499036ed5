package workload

import (
	"context"
	"time"
)

// profileFor is how long the load of a workload is on once more for its profile,
// apart from what is measured.
const profileFor = 5 * time.Second

// profile runs a load again under the profiler, if profiles are asked for. The load
// that failed here has been measured before; the profile is left out then.
func (e *Env) profile(ctx context.Context, again func(context.Context) error) {
	if e.Profile != nil {
		e.Profile(ctx, again)
	}
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
