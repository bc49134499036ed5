package workload

import (
	"context"
	"fmt"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// idleWatches measures watches without events: opening them and their memory, with streams
// of them on each connection. Both rows are of one run, on a server without earlier watches
// of ours, because freed memory would be used again.
func idleWatches(group, name, title string, streams int, limits [2]float64) []Workload {
	var held float64 // kB per watch of the last run; 0 without one
	var opened int
	limit := func(i int) map[string]float64 {
		if limits[i] == 0 {
			return nil
		}
		return map[string]float64{"": limits[i]}
	}
	return []Workload{
		{
			Name: "open-watch" + name, Title: "opening a watch" + title, Group: group, Figure: report.CPUPerOp, Limits: limit(0),
			Run: func(ctx context.Context, e *Env, publish Publish) error {
				opened = 0
				s, kilobytes, err := openWatches(ctx, e, pick(e, 1000, 5000), streams)
				if err != nil {
					return err
				}
				held, opened = kilobytes, s.Ops
				publish("", 0, s)
				e.profile(ctx, func(ctx context.Context) error { return openAgain(ctx, e, opened, streams) })
				return nil
			},
		}, {
			Name: "idle-watcher" + name, Title: "resident memory per idle watcher" + title, Group: group, Figure: report.Kilobytes, Limits: limit(1),
			Run: func(_ context.Context, _ *Env, publish Publish) error {
				if opened == 0 {
					return fmt.Errorf("%w: no watches were opened before", load.ErrAnswer)
				}
				publish("", 0, report.Sample{Value: held, Notes: map[string]float64{"watchers": float64(opened)}})
				return nil
			},
		},
	}
}

func openWatches(ctx context.Context, e *Env, n, streams int) (s report.Sample, kilobytes float64, err error) {
	if !e.Subject.Floor {
		if err := e.watchedObjects(ctx); err != nil {
			return s, 0, err
		}
	}
	if err := pause(ctx, calmed); err != nil {
		return s, 0, err
	}
	before, err := e.resident()
	if err != nil {
		return s, 0, err
	}
	var watching *load.Fan
	begin := time.Now()
	spent, err := e.spent(ctx, func() (err error) {
		watching, err = e.watch(ctx, fan{accept: jsonType, watchers: n, streams: streams})
		return err
	})
	if err != nil {
		return s, 0, err
	}
	defer watching.Close()
	s = spent.per(n)
	s.Rate = float64(n) / (time.Since(begin) - settle).Seconds()
	if err := pause(ctx, pick(e, calmed, 10*time.Second)); err != nil {
		return s, 0, err
	}
	after, err := e.resident()
	return s, (after - before) / 1e3 / float64(n), err
}

// openAgain opens and closes watches for the length of a profile.
func openAgain(ctx context.Context, e *Env, n, streams int) error {
	for begin := time.Now(); time.Since(begin) < profileFor; {
		watching, err := e.watch(ctx, fan{accept: jsonType, watchers: n, streams: streams})
		if err != nil {
			return err
		}
		watching.Close()
	}
	return nil
}

var idle = append(
	idleWatches("idle watchers", "", "", load.StreamsPerConn, [2]float64{200, 25}),
	idleWatches("idle watchers, a connection each", "-alone", ", a connection each", 1, [2]float64{})...)
