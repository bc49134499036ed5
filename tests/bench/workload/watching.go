package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
	"triune.dev/tests/bench/stats"
)

// The watched objects are in their own namespace.
const (
	watched       = "bench-watch"
	watchedMaps   = "/api/v1/namespaces/" + watched + "/configmaps"
	watchedLabel  = "watched=yes"
	watchedObject = 8
)

// fan is a workload of many watchers of the same few objects. Every event must reach every
// watcher, once and in order.
type fan struct {
	accept   string
	selector string // label or field selector, as a query
	watchers int
	events   int           // for each watcher
	burst    int           // number of events written concurrently
	streams  int           // watchers on each connection; 0 is the maximum
	every    time.Duration // interval of bursts; 0 is without a pause
	// delivery receives the sample without the cost of the updates; optional.
	delivery func(report.Sample)
}

// watchedObjects creates the objects of the events. Only those with an even number have the
// label.
func (e *Env) watchedObjects(ctx context.Context) error {
	if err := e.namespace(ctx, watched); err != nil {
		return err
	}
	return e.once("watched objects", func() error {
		return e.fill(ctx, watchedObject, func(i int) load.Request {
			o := configMap(fmt.Sprintf("watched-%d", i), i)
			o["metadata"].(object)["labels"] = object{"watched": map[bool]string{true: "yes", false: "no"}[i%2 == 0]}
			return post(watchedMaps, o)
		})
	})
}

// touch returns a patch of one watched object to a new value, because a patch without
// changes makes no event. size is the size of the event on the floor.
func (e *Env) touch(n int, size int64) load.Request {
	e.touched++
	if e.Subject.Floor {
		return load.Request{Method: "POST", Path: fmt.Sprintf("/event?size=%d", size)}
	}
	return patch(watchedMaps+fmt.Sprintf("/watched-%d", n), mergePatch, object{"data": object{"count": fmt.Sprintf("touch %08d", e.touched)}})
}

// watch opens the watchers of a fan.
func (e *Env) watch(ctx context.Context, f fan) (*load.Fan, error) {
	streams := f.streams
	if streams == 0 {
		streams = load.StreamsPerConn
	}
	if e.Subject.Floor {
		return load.Watch(ctx, f.watchers, streams, load.Request{Path: "/watch"}, e.Targets...)
	}
	list, err := e.send(ctx, load.Request{Path: watchedMaps + "?limit=1", Accept: jsonType})
	if err != nil {
		return nil, err
	}
	revision, err := load.RevisionOf(list)
	if err != nil {
		return nil, err
	}
	queries := []string{"watch=1", fmt.Sprintf("resourceVersion=%d", revision), "timeoutSeconds=3600"}
	if f.selector != "" {
		queries = append(queries, f.selector)
	}
	return load.Watch(ctx, f.watchers, streams, load.Request{Path: join(watchedMaps, queries...), Accept: f.accept}, e.Targets...)
}

func (f fan) run(ctx context.Context, e *Env, publish func(report.Sample)) error {
	if !e.Subject.Floor {
		if err := e.watchedObjects(ctx); err != nil {
			return err
		}
	}
	size, known := e.Sizes["watch"]
	if e.Subject.Floor && !known {
		return ErrNoSize
	}
	watching, err := e.watch(ctx, f)
	if err != nil {
		return err
	}
	defer watching.Close()
	writers := e.conns(f.burst)
	defer load.CloseAll(writers)
	if err := e.dial(ctx, writers); err != nil {
		return err
	}
	w := &writer{env: e, conns: writers, size: size, watching: watching}
	// One burst without measurement fills caches.
	if err := w.burst(ctx, f.burst); err != nil {
		return err
	}
	before, _ := watching.Delivered()
	if err := e.resetPeaks(); err != nil {
		return err
	}
	w.lasts = nil
	begin := time.Now()
	spent, err := e.spent(ctx, func() error {
		for i := range (f.events + f.burst - 1) / f.burst {
			if err := pause(ctx, time.Until(begin.Add(time.Duration(i)*f.every))); err != nil {
				return err
			}
			if err := w.burst(ctx, f.burst); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	took := time.Since(begin) - settle
	after, _ := watching.Delivered()
	events := after - before
	s := spent.per(int(events))
	s.Rate = float64(events) / took.Seconds()
	if s.Memory, err = e.memory(); err != nil {
		return err
	}
	all, bytes := watching.Delivered()
	s.Body = float64(bytes) / float64(all)
	watching.Close()
	if err := watching.Verify(w.written); err != nil {
		return err
	}
	p50, p99 := watching.Latencies()
	s.P50, s.P99 = milli(p50), milli(p99)
	slices.Sort(w.lasts)
	s.Value = stats.Percentile(w.lasts, 0.99).Seconds()
	s.Notes = map[string]float64{"watchers": float64(f.watchers), "last watcher, median ms": milli(stats.Percentile(w.lasts, 0.5)), "last watcher, p99 ms": milli(stats.Percentile(w.lasts, 0.99))}
	if !known {
		e.Sizes["watch"] = int64(s.Body)
	}
	publish(s)
	if f.delivery != nil {
		if err := f.apart(ctx, e, w, s); err != nil {
			return err
		}
	}
	return f.again(ctx, e, size)
}

// apart writes as many events without watchers, and subtracts their cost.
func (f fan) apart(ctx context.Context, e *Env, w *writer, all report.Sample) error {
	if err := pause(ctx, settle); err != nil { // until the watches are closed
		return err
	}
	updates, err := e.spent(ctx, func() error {
		for range (f.events + f.burst - 1) / f.burst {
			if _, err := w.write(ctx, f.burst); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s := report.Sample{Ops: all.Ops, CPU: map[string]float64{}}
	for name, spent := range all.CPU {
		s.CPU[name] = max(0, spent-micro(updates.server[name])/float64(all.Ops))
	}
	f.delivery(s)
	return nil
}

// again repeats the load for a profile, with other watchers, so that the counts of the
// measured ones are not changed. They are opened before the profile starts, which would
// otherwise show mostly that.
func (f fan) again(ctx context.Context, e *Env, size int64) error {
	if e.Profile == nil {
		return nil
	}
	watching, err := e.watch(ctx, f)
	if err != nil {
		return err
	}
	defer watching.Close()
	conns := e.conns(f.burst)
	defer load.CloseAll(conns)
	w := &writer{env: e, conns: conns, size: size, watching: watching}
	e.profile(ctx, func(ctx context.Context) error {
		for begin := time.Now(); time.Since(begin) < profileFor; {
			if err := w.burst(ctx, f.burst); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// writer writes events and waits until all watchers have received them.
type writer struct {
	env      *Env
	conns    []*load.Conn
	size     int64
	watching *load.Fan

	written []uint64
	// lasts has the time from the write of each burst until the last watcher had it.
	lasts []time.Duration
}

// burst writes n events concurrently, each for a different selected object.
func (w *writer) burst(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("the watchers did not get an event within a minute"))
	defer cancel()
	begin := time.Now()
	w.watching.Wrote()
	revisions, err := w.write(ctx, n)
	if err != nil {
		return err
	}
	w.written = append(w.written, revisions...)
	err = w.watching.Await(ctx, len(w.written))
	w.lasts = append(w.lasts, time.Since(begin))
	return err
}

// write writes the events of a burst, and returns their revisions.
func (w *writer) write(ctx context.Context, n int) ([]uint64, error) {
	revisions := make([]uint64, n)
	errs := make([]error, n)
	var writing sync.WaitGroup
	for i := range n {
		request := w.env.touch(2*i, w.size)
		writing.Go(func() {
			body, err := w.conns[i].Get(ctx, request)
			if err == nil {
				revisions[i], err = load.RevisionOf(body)
			}
			errs[i] = err
		})
	}
	writing.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return revisions, nil
}

const watchGroup = "watches"

var watching = []Workload{
	{
		Name: "watch-500", Title: "watch, one event to one of 500 watchers", Group: watchGroup, Figure: report.CPUPerOp,
		Limits: map[string]float64{"": 13},
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			return fan{
				accept: jsonType, watchers: 500, events: pick(e, 100, 400), burst: 1,
				delivery: func(s report.Sample) { publish(Delivery, 0, s) },
			}.run(ctx, e, func(s report.Sample) { publish("", 0, s) })
		},
	},
	{
		Name: "watch-500-burst", Title: "the same, four events at once", Group: watchGroup, Figure: report.CPUPerOp,
		Limits: map[string]float64{"": 5},
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			return fan{
				accept: jsonType, watchers: 500, events: pick(e, 200, 800), burst: 4,
				delivery: func(s report.Sample) { publish(Delivery, 0, s) },
			}.run(ctx, e, func(s report.Sample) { publish("", 0, s) })
		},
	},
}

const fanGroup = "fan-out"

// fanOut repeats it with more watchers, other encodings and selectors.
var fanOut = func() []Workload {
	var all []Workload
	for _, w := range []struct {
		name, title string
		fan         fan
	}{
		{"protobuf-500", "500 watchers, protobuf", fan{accept: protobufType, watchers: 500, events: 200}},
		{"label-500", "500 watchers, label selector", fan{accept: jsonType, watchers: 500, events: 200, selector: "labelSelector=" + strings.Replace(watchedLabel, "=", "%3D", 1)}},
		{"field-500", "500 watchers, one object by name", fan{accept: jsonType, watchers: 500, events: 200, selector: "fieldSelector=metadata.name%3Dwatched-0"}},
		{"json-5000", "5,000 watchers, JSON", fan{accept: jsonType, watchers: 5000, events: 50}},
		{"protobuf-5000", "5,000 watchers, protobuf", fan{accept: protobufType, watchers: 5000, events: 50}},
		{"json-20000", "20,000 watchers, JSON", fan{accept: jsonType, watchers: 20000, events: 20}},
	} {
		f := w.fan
		f.burst = 1
		all = append(all, Workload{
			Name: "fan-" + w.name, Title: "one event to one of " + w.title, Group: fanGroup, Figure: report.CPUPerOp, Slow: true, Only: api,
			Run: func(ctx context.Context, e *Env, publish Publish) error {
				f := f
				if f.watchers > 500 {
					f.watchers = e.scaled(f.watchers, 500)
				}
				return f.run(ctx, e, func(s report.Sample) { publish("", 0, s) })
			},
		})
	}
	return append(all, Workload{
		Name: "fan-last-of-10000", Title: "one event a second, until the last of 10,000 watchers has it, p99", Group: fanGroup, Figure: report.Seconds, Slow: true, Only: api,
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			f := fan{accept: jsonType, watchers: e.scaled(10000, 500), events: pick(e, 20, 60), burst: 1, every: time.Second}
			return f.run(ctx, e, func(s report.Sample) { publish("", 0, s) })
		},
	})
}()
