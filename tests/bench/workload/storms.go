package workload

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

const stormGroup = "restart storm"

// storms measure failures that affect all clients.
var storms = []Workload{
	{
		Name: "restart-storm", Title: "1,000 informers after `kill -9`: until all are back", Group: stormGroup, Figure: report.Seconds, Slow: true,
		Only: func(s Subject) bool { return !s.Floor && !s.Tiers },
		Run:  storm{informers: 1000}.run,
	},
	{
		Name: "restart-herd", Title: "25,000 watches after `kill -9`, each ten events behind: until all are level", Group: stormGroup, Figure: report.Seconds, Slow: true,
		Only: func(s Subject) bool { return !s.Floor && !s.Replicated },
		Run:  storm{informers: 25000, behind: 10}.run,
	},
	{
		Name: "stalled-watcher", Title: "one event to one of 100 watchers beside one that does not read", Group: stormGroup, Figure: report.CPUPerOp, Slow: true, Only: api,
		Run: stalledWatcher,
	},
}

// informer lists and watches, and resumes when its watch ends, as client-go's reflector
// does; it lists again if the server refuses to resume.
type informer struct {
	conn     *load.Conn
	revision uint64
	lists    int
}

// sync reads until a revision at or after want.
func (f *informer) sync(ctx context.Context, want uint64) error {
	for f.revision < want {
		if err := f.round(ctx, want); err != nil && ctx.Err() != nil {
			return fmt.Errorf("an informer is at revision %d, not %d: %w (%w)", f.revision, want, err, context.Cause(ctx))
		}
		if f.revision < want {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *informer) round(ctx context.Context, want uint64) error {
	if f.revision == 0 {
		f.lists++
		body, err := f.conn.Get(ctx, load.Request{Path: join(watchedMaps, "resourceVersion=0"), Accept: jsonType})
		if err != nil {
			return err
		}
		f.revision, err = load.RevisionOf(body)
		return err
	}
	last, err := f.conn.Follow(ctx, load.Request{
		Path: join(watchedMaps, "watch=1", fmt.Sprintf("resourceVersion=%d", f.revision)), Accept: jsonType,
	}, want)
	if status(err) == http.StatusGone || last == load.Expired {
		f.revision = 0
		return err
	}
	f.revision = max(f.revision, last)
	return err
}

// storm is the restart of a server to which all clients return at once.
type storm struct {
	informers int
	// behind is the number of events that the clients have not seen when the server is
	// killed.
	behind int
}

func (s storm) run(ctx context.Context, e *Env, publish Publish) error {
	if err := e.watchedObjects(ctx); err != nil {
		return err
	}
	n := e.scaled(s.informers, 100)
	conns := e.conns((n + load.StreamsPerConn - 1) / load.StreamsPerConn)
	defer load.CloseAll(conns)
	informers := make([]*informer, n)
	for i := range informers {
		informers[i] = &informer{conn: conns[i/load.StreamsPerConn]}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, fmt.Errorf("not all informers were back within five minutes"))
	defer cancel()
	catchUp := func() error {
		body, err := e.send(ctx, e.touch(0, 0))
		if err != nil {
			return err
		}
		want, err := load.RevisionOf(body)
		if err != nil {
			return err
		}
		errs := make([]error, n)
		var syncing sync.WaitGroup
		for i, f := range informers {
			syncing.Go(func() { errs[i] = f.sync(ctx, want) })
		}
		syncing.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := catchUp(); err != nil {
		return err
	}
	for range s.behind {
		if _, err := e.send(ctx, e.touch(0, 0)); err != nil {
			return err
		}
	}
	before, err := e.clocks()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := e.Restart(ctx); err != nil {
		return err
	}
	ready := time.Since(begin)
	lists := 0
	for _, f := range informers {
		lists -= f.lists
	}
	if err := catchUp(); err != nil {
		return err
	}
	for _, f := range informers {
		lists += f.lists
	}
	took := time.Since(begin)
	now, err := e.clocks()
	if err != nil {
		return err
	}
	memory, err := e.memory()
	if err != nil {
		return err
	}
	notes := map[string]float64{
		"informers": float64(n), "s to readyz": ready.Seconds(), "lists again": float64(lists),
		"s of CPU of the clients": (now.client - before.client).Seconds(),
	}
	killed := e.Processes()[0].Name
	for name, spent := range now.server {
		if name == killed {
			notes["s of CPU since the start"] = spent.Seconds()
		} else {
			notes["s of CPU of "+name] = (spent - before.server[name]).Seconds()
		}
	}
	publish("", 0, report.Sample{Value: took.Seconds(), Memory: memory, Notes: notes})
	if e.Profile == nil {
		return nil
	}
	if err := e.Restart(ctx); err != nil {
		return err
	}
	e.profile(ctx, func(context.Context) error { return catchUp() })
	return nil
}

// stalledWatcher measures a fan of 100 watchers beside one that reads nothing.
func stalledWatcher(ctx context.Context, e *Env, publish Publish) error {
	if err := e.watchedObjects(ctx); err != nil {
		return err
	}
	if err := pause(ctx, calmed); err != nil {
		return err
	}
	before, err := e.resident()
	if err != nil {
		return err
	}
	conns := e.conns(1)
	defer load.CloseAll(conns)
	stalled, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := conns[0].Stall(stalled, load.Request{Path: join(watchedMaps, "watch=1"), Accept: jsonType}); err != nil {
		return err
	}
	return fan{accept: jsonType, watchers: 100, events: pick(e, 500, 5000), burst: 1}.run(ctx, e, func(s report.Sample) {
		after := float64(s.AllMemory().Resident)
		s.Notes = map[string]float64{"rise MB": (after - before) / 1e6}
		publish("", 0, s)
	})
}
