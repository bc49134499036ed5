package workload

import (
	"context"
	"fmt"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// starting measures the cost of a server before its first request. Its group is measured
// first, on a server that has just started.
var starting = []Workload{
	{
		Name: "start", Title: "start to `readyz`, empty etcd", Group: tableGroup, Figure: report.Seconds,
		Limits: map[string]float64{"": 0.6}, Only: api,
		Run: func(_ context.Context, e *Env, publish Publish) error {
			publish("", 0, report.Sample{Value: e.Started.Seconds()})
			return nil
		},
	},
	{
		Name: "idle-memory", Title: "resident, idle", Group: tableGroup, Figure: report.Resident,
		Limits: map[string]float64{"": 150}, Only: api,
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			// The idle CPU time, which comes next, must not include the rest of the start.
			if err := pause(ctx, pick(e, 12*time.Second, 15*time.Second)); err != nil {
				return err
			}
			memory, err := e.memory()
			if err != nil {
				return err
			}
			publish("", 0, report.Sample{Memory: memory})
			return nil
		},
	},
	{
		Name: "idle-anonymous", Title: "of it anonymous", Group: tableGroup, Figure: report.Anonymous,
		Limits: map[string]float64{"": 80}, Only: api,
		Run: justMemory,
	},
	{
		Name: "idle-cpu", Title: "idle CPU", Group: tableGroup, Figure: report.Percent,
		Limits: map[string]float64{"": 0.3}, Only: api,
		Long: true, // a garbage collection would weigh too much in a few seconds
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			length := pick(e, 12*time.Second, 60*time.Second)
			spent, err := e.spent(ctx, func() error { return pause(ctx, length) })
			if err != nil {
				return err
			}
			s := report.Sample{Notes: map[string]float64{}}
			for name, t := range spent.server {
				percent := 100 * t.Seconds() / length.Seconds()
				s.Value += percent
				s.Notes[name+" %"] = percent
			}
			publish("", 0, s)
			e.profileIdle(ctx)
			return nil
		},
	},
}

// afterwards are the costs of a server that has done the workloads of their group: of a scrape
// of its metrics, and its memory then and under load.
var afterwards = []Workload{{
	Name: "scrape", Title: "scrape of /metrics", Group: tableGroup, Figure: report.CPUPerOp,
	Only: func(s Subject) bool { return api(s) && !s.Tiers },
	Run: func(ctx context.Context, e *Env, publish Publish) error {
		conns := e.conns(1)
		defer load.CloseAll(conns)
		scrape := func(int) load.Request { return load.Request{Path: "/metrics", Encoding: "gzip"} }
		if _, err := (load.Closed{MaxOps: 1}).Run(ctx, conns, scrape); err != nil {
			return err
		}
		s, err := e.measure(ctx, func() (load.Result, error) {
			return load.Closed{For: pick(e, time.Second, 5*time.Second)}.Run(ctx, conns, scrape)
		})
		if err != nil {
			return err
		}
		publish("", 0, s)
		return nil
	},
}, {
	Name: "memory-under-load", Title: "resident, under the workloads above", Group: tableGroup, Figure: report.Peak, Only: api,
	Run: func(_ context.Context, e *Env, publish Publish) error {
		if e.highest.Memory == nil {
			return fmt.Errorf("%w: nothing was measured before", load.ErrAnswer)
		}
		publish("", 0, report.Sample{Memory: e.highest.Memory})
		return nil
	},
}, {
	Name: "memory-after", Title: "resident after the workloads above", Group: tableGroup, Figure: report.Resident,
	Limits: map[string]float64{"": 250}, Only: api,
	Run: func(ctx context.Context, e *Env, publish Publish) error {
		if err := pause(ctx, calmed); err != nil {
			return err
		}
		return justMemory(ctx, e, publish)
	},
}}

func justMemory(_ context.Context, e *Env, publish Publish) error {
	memory, err := e.memory()
	if err != nil {
		return err
	}
	publish("", 0, report.Sample{Memory: memory})
	return nil
}
