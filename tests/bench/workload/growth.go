package workload

import (
	"context"
	"fmt"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// factors are the sizes at which a cost is measured, relative to the smallest.
var factors = []int{1, 4, 16, 64}

// grow measures a cost at several sizes.
type grow struct {
	name, title string
	figure      report.Figure
	base        int // the smallest size
	cost        cost
}

// cost measures at one size, and returns the load for the profile of the largest size. The
// load is nil if the profile has been taken.
type cost func(ctx context.Context, e *Env, size int) (s report.Sample, again func(context.Context) error, err error)

func (g grow) workload() Workload {
	return Workload{
		Name: "grow-" + g.name, Title: g.title, Group: "growth: " + g.name, Figure: g.figure, Slow: true, Only: single,
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			var again func(context.Context) error
			for _, factor := range factors {
				size := g.base * factor
				var s report.Sample
				var err error
				if s, again, err = g.cost(ctx, e, size); err != nil {
					return fmt.Errorf("at %d: %w", size, err)
				}
				publish(fmt.Sprint(size), float64(size), s)
			}
			if again != nil {
				e.profile(ctx, again)
			}
			return nil
		},
	}
}

var growth = func() []Workload {
	var all []Workload
	for _, g := range []grow{
		{name: "list", title: "LIST of n config maps", figure: report.CPUPerOp, base: 250, cost: growList("")},
		{name: "list-no-match", title: "LIST that matches none of n config maps", figure: report.CPUPerOp, base: 250, cost: growList(noMatch)},
		{name: "get", title: "GET one of n config maps", figure: report.CPUPerOp, base: 250, cost: growGet},
		{name: "create", title: "CREATE beside n config maps", figure: report.CPUPerOp, base: 250, cost: growCreate},
		{name: "watchers", title: "one event to all of n watchers", figure: report.CPUPerOp, base: 50, cost: growWatchers},
		{name: "definitions", title: "memory per CRD beside n others", figure: report.Kilobytes, base: 5, cost: growDefinitions},
	} {
		all = append(all, g.workload())
	}
	return all
}()

const (
	grown     = "bench-grow"
	grownMaps = "/api/v1/namespaces/" + grown + "/configmaps"
)

// grownTo grows the namespace to size config maps.
func (e *Env) grownTo(ctx context.Context, size int) error {
	from := 0
	for _, factor := range factors {
		if n := 250 * factor; n < size {
			from = n
		}
	}
	return e.smallMaps(ctx, grown, from, size)
}

// repeat measures many repetitions of one request.
func repeat(ctx context.Context, e *Env, next load.Next) (s report.Sample, again func(context.Context) error, err error) {
	const callers = 8
	conns := e.conns(callers)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return s, nil, err
	}
	loop := load.Closed{For: pick(e, time.Second, 3*time.Second), MinOps: 16}
	s, err = e.measure(ctx, func() (load.Result, error) { return loop.Run(ctx, conns, next) })
	again = func(ctx context.Context) error {
		conns := e.conns(callers)
		defer load.CloseAll(conns)
		// The requests that were in flight at the end of the measurement have been sent,
		// too.
		_, err := load.Closed{For: profileFor}.Run(ctx, conns, func(i int) load.Request { return next(s.Ops + callers + i) })
		return err
	}
	return s, again, err
}

func growList(selector string) cost {
	return func(ctx context.Context, e *Env, size int) (report.Sample, func(context.Context) error, error) {
		if err := e.grownTo(ctx, size); err != nil {
			return report.Sample{}, nil, err
		}
		request := load.Request{Path: grownMaps, Accept: jsonType, MinSize: int64(size) * 100}
		if selector != "" {
			request = load.Request{Path: join(grownMaps, selector), Accept: jsonType, MaxSize: 1000}
		}
		return repeat(ctx, e, func(int) load.Request { return request })
	}
}

func growGet(ctx context.Context, e *Env, size int) (report.Sample, func(context.Context) error, error) {
	if err := e.grownTo(ctx, size); err != nil {
		return report.Sample{}, nil, err
	}
	return repeat(ctx, e, func(i int) load.Request {
		return load.Request{Path: grownMaps + fmt.Sprintf("/map-%d", i%size), Accept: jsonType, MinSize: 100}
	})
}

func growCreate(ctx context.Context, e *Env, size int) (report.Sample, func(context.Context) error, error) {
	if err := e.grownTo(ctx, size); err != nil {
		return report.Sample{}, nil, err
	}
	return repeat(ctx, e, func(i int) load.Request { return post(grownMaps, configMap(fmt.Sprintf("more-%d-%d", size, i), i)) })
}

// growWatchers returns the cost of one event for all watchers together.
func growWatchers(ctx context.Context, e *Env, size int) (s report.Sample, _ func(context.Context) error, err error) {
	err = fan{accept: jsonType, watchers: size, events: pick(e, 20, 50), burst: 1}.run(ctx, e, func(measured report.Sample) {
		s = measured
		for name := range s.CPU {
			s.CPU[name] *= float64(size)
		}
		s.Client *= float64(size)
	})
	return s, nil, err
}

func growDefinitions(ctx context.Context, e *Env, size int) (report.Sample, func(context.Context) error, error) {
	made, err := e.define(ctx, fmt.Sprintf("grow%d.triune.dev", size), size)
	if err != nil {
		return report.Sample{}, nil, err
	}
	s := made.spent.per(size)
	s.Value = made.resident / 1e3 / float64(size)
	s.Notes = map[string]float64{"s until served": made.took.Seconds()}
	return s, e.defineAgain, nil
}
