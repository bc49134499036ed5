package workload

import (
	"context"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// hops compares the same GET through one, two and three tiers.
var hops = func() []Workload {
	var all []Workload
	for _, h := range []struct {
		name, title, enter string
		custom             bool
	}{
		{"pod-1", "GET pod at core: one tier", "core", false},
		{"pod-2", "GET pod through the aggregator: two tiers", "aggregator", false},
		{"custom-1", "GET custom resource at extensions: one tier", "extensions", true},
		{"custom-2", "GET custom resource at core: two tiers", "core", true},
		{"custom-3", "GET custom resource through the aggregator: three tiers", "aggregator", true},
	} {
		all = append(all, Workload{
			Name: "hops-" + h.name, Title: h.title, Group: "hops", Figure: report.CPUPerOp, Slow: true, Only: tiers,
			Run: func(ctx context.Context, e *Env, publish Publish) error {
				return hop(ctx, e, h.enter, h.custom, publish)
			},
		})
	}
	return all
}()

func hop(ctx context.Context, e *Env, enter string, custom bool, publish Publish) error {
	if err := e.namespace(ctx, namespace); err != nil {
		return err
	}
	path := podsPath + "/one"
	if custom {
		path = widgetsPath + "/one"
		if err := e.widgetCRD(ctx); err != nil {
			return err
		}
	}
	if err := e.once(path, func() error {
		request := post(podsPath, pod("one", 1))
		if custom {
			request = post(widgetsPath, widget("one", 1))
		}
		_, err := e.send(ctx, request)
		return err
	}); err != nil {
		return err
	}
	conns := load.DialAll(loadConns, e.Hop[enter])
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	request := load.Request{Path: join(path, "resourceVersion=0"), Accept: jsonType, MinSize: 100}
	next := func(int) load.Request { return request }
	s, err := e.measure(ctx, func() (load.Result, error) {
		return load.Closed{For: pick(e, time.Second, 5*time.Second)}.Run(ctx, conns, next)
	})
	if err != nil {
		return err
	}
	publish("", 0, s)
	e.profileReads(ctx, conns, next)
	return nil
}
