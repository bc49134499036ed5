package workload

import (
	"context"
	"fmt"
	"strings"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// The cost of a LIST without matches must not depend on the number of objects.
const (
	scanned     = "bench-scan"
	scannedMaps = "/api/v1/namespaces/" + scanned + "/configmaps"
	noMatch     = "labelSelector=app%3Dnobody"
)

// smallMap returns a small config map, because there are many of them.
func smallMap(i int) object {
	return object{
		"metadata": object{"name": fmt.Sprintf("map-%d", i), "labels": object{"app": fmt.Sprintf("app-%d", i%podApps)}},
		"data":     object{"count": fmt.Sprintf("%08d", i)},
	}
}

// smallMaps grows a namespace to n config maps.
func (e *Env) smallMaps(ctx context.Context, namespace string, from, n int) error {
	if err := e.namespace(ctx, namespace); err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	return e.once(fmt.Sprintf("%d config maps", n), func() error {
		return e.fill(ctx, n-from, func(i int) load.Request { return post(path, smallMap(from+i)) })
	})
}

const scanGroup = "many objects"

func scan(name, title string, n int, limit float64) Workload {
	return read{
		name: name, title: title, group: scanGroup, limit: limit, items: 0,
		need:    func(e *Env, ctx context.Context) error { return e.smallMaps(ctx, scanned, 0, n) },
		request: accepting(jsonType, scannedMaps, noMatch),
		update: func(i int) load.Request {
			return patch(scannedMaps+fmt.Sprintf("/map-%d", i%n), mergePatch, object{"data": object{"count": fmt.Sprintf("%08d", i)}})
		},
	}.workload()
}

// Twenty thousand creations take too long for a quick run.
var scanning = []Workload{slow(scan("list-no-match", "LIST that matches no label, 20,000 config maps", 20000, 200))}

func slow(w Workload) Workload {
	w.Slow = true
	return w
}

// large measures the cost of many or large objects.
var large = []Workload{
	{
		Name: "list-no-match-300000", Title: "LIST that matches no label, 300,000 config maps", Group: "300,000 config maps", Figure: report.CPUPerOp, Slow: true, Only: single,
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			n := e.scaled(300000, 20000)
			if err := e.smallMaps(ctx, scanned, 0, n); err != nil {
				return err
			}
			return measureList(ctx, e, accepting(jsonType, scannedMaps, noMatch), n, publish)
		},
	}, {
		Name: "memory-per-stored-byte", Title: "100,000 custom resources of 10 kB: anonymous memory ÷ stored bytes", Group: "100,000 custom resources", Figure: report.Ratio, Slow: true, Only: single,
		Run: storedCustomResources,
	}, {
		Name: "ten-large-lists", Title: "ten LISTs of 500 MB at once: rise of resident memory", Group: "large lists", Figure: report.Peak, Slow: true, Only: single,
		Run: largeLists,
	},
}

// measureList is the warm phase of a read with a size that is known at run time.
func measureList(ctx context.Context, e *Env, next load.Next, n int, publish Publish) error {
	conns := e.conns(8)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	if _, err := conns[0].Get(ctx, next(0)); err != nil { // caches are filled
		return err
	}
	loop := load.Closed{For: pick(e, second, 4*second), MinOps: 16}
	s, err := e.measure(ctx, func() (load.Result, error) { return loop.Run(ctx, conns, next) })
	if err != nil {
		return err
	}
	s.Notes = map[string]float64{"objects": float64(n)}
	publish("", 0, s)
	e.profileReads(ctx, conns, next)
	return nil
}

// largeLists lists many large config maps ten times concurrently, and publishes the growth
// of the memory.
func largeLists(ctx context.Context, e *Env, publish Publish) error {
	const each, lists = 256 << 10, 10
	const name = "bench-large"
	path := "/api/v1/namespaces/" + name + "/configmaps"
	if err := e.namespace(ctx, name); err != nil {
		return err
	}
	n := e.scaled(listBytes()/each, 20)
	text := strings.Repeat("0123456789abcdef", each/16)
	if err := e.fill(ctx, n, func(i int) load.Request {
		return post(path, object{"metadata": object{"name": fmt.Sprintf("map-%d", i)}, "data": object{"text": text}})
	}); err != nil {
		return err
	}
	if err := pause(ctx, calmed); err != nil {
		return err
	}
	before, err := e.resident()
	if err != nil {
		return err
	}
	conns := e.conns(lists)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	request := load.Request{Path: path, Accept: jsonType, MinSize: int64(n) * each}
	s, err := e.measure(ctx, func() (load.Result, error) {
		return load.Closed{MinOps: lists, MaxOps: lists}.Run(ctx, conns, func(int) load.Request { return request })
	})
	if err != nil {
		return err
	}
	s.Notes = map[string]float64{"list MB": s.Body / 1e6, "rise MB": float64(s.AllMemory().Peak)/1e6 - before/1e6}
	publish("", 0, s)
	e.profileReads(ctx, conns, func(int) load.Request { return request })
	return nil
}
