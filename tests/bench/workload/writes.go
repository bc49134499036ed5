package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// write is a workload of one kind of write, each to a different object or to many in turn.
type write struct {
	name, title string
	limit       float64 // µs
	need        func(*Env, context.Context) error
	request     func(i int) load.Request
	// count bounds the number of writes, and as many again with profiles; 0 is no bound.
	count int
	// floor reports whether the floor has a figure for it.
	floor bool
}

func (w write) workload() Workload {
	work := Workload{Name: w.name, Title: w.title, Group: tableGroup, Figure: report.CPUPerOp, Limits: map[string]float64{"": w.limit}, Run: w.run}
	if !w.floor {
		work.Only = api
	}
	return work
}

func (w write) run(ctx context.Context, e *Env, publish Publish) error {
	if !e.Subject.Floor {
		if err := w.need(e, ctx); err != nil {
			return err
		}
	}
	conns := e.conns(loadConns)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	if _, err := e.translate(w.name, w.request(0)); err != nil {
		return err
	}
	next := func(i int) load.Request {
		r, _ := e.translate(w.name, w.request(warmUp+i)) // checked above
		return r
	}
	// The first writes of a kind fill caches, so they are not measured.
	if _, err := (load.Closed{MinOps: warmUp, MaxOps: warmUp}).Run(ctx, conns, func(i int) load.Request { return next(i - warmUp) }); err != nil {
		return err
	}
	// The number is the same for every server, because their memory afterwards is compared,
	// too.
	n := pick(e, 1500, 5000)
	if w.count > 0 {
		n = min(n, w.count-warmUp)
	}
	loop := load.Closed{MinOps: n, MaxOps: n}
	s, err := e.measure(ctx, func() (load.Result, error) { return loop.Run(ctx, conns, next) })
	if err != nil {
		return err
	}
	if _, ok := e.Sizes[w.name]; !ok {
		e.Sizes[w.name] = int64(s.Body)
	}
	publish("", 0, s)
	return e.profileWrites(ctx, func(ctx context.Context) error {
		_, err := loop.Run(ctx, conns, func(i int) load.Request { return next(s.Ops + i) })
		return err
	})
}

// warmUp is the number of writes before the measurement.
const warmUp = 64

// The writes go to a separate namespace, so that they do not change the lists.
const (
	writing         = "bench-write"
	writtenPods     = "/api/v1/namespaces/" + writing + "/pods"
	writtenMaps     = "/api/v1/namespaces/" + writing + "/configmaps"
	writtenWidgets  = "/apis/bench.triune.dev/v1/namespaces/" + writing + "/widgets"
	appliedObjects  = 320
	deletedObjects  = 3000
	deletedMapsName = "deleted-%d"
)

func (e *Env) writingNamespace(ctx context.Context) error { return e.namespace(ctx, writing) }

func apply(i int) load.Request {
	name := fmt.Sprintf("applied-%d", i%appliedObjects)
	r := patch(writtenMaps+"/"+name+"?fieldManager=bench&force=true", applyPatch, configMap(name, i))
	return r
}

var writes = func() []Workload {
	var all []Workload
	for _, w := range []write{
		{
			name: "create-pod", title: "CREATE pod", limit: 850, need: (*Env).writingNamespace, floor: true,
			request: func(i int) load.Request { return post(writtenPods, pod(podName(i), i)) },
		}, {
			name: "create-configmap", title: "CREATE config map", limit: 420, need: (*Env).writingNamespace, floor: true,
			request: func(i int) load.Request { return post(writtenMaps, configMap(fmt.Sprintf("map-%d", i), i)) },
		}, {
			name: "create-custom", title: "CREATE custom resource", limit: 550, floor: true,
			need: func(e *Env, ctx context.Context) error {
				return errors.Join(e.widgetCRD(ctx), e.namespace(ctx, writing))
			},
			request: func(i int) load.Request { return post(writtenWidgets, widget(fmt.Sprintf("widget-%d", i), i)) },
		}, {
			name: "patch-pod-status", title: "PATCH pod status", limit: 1400, need: (*Env).pods,
			request: func(i int) load.Request {
				return patch(podsPath+"/"+podName(i*7%pods)+"/status", strategicPatch, object{"status": object{
					"phase": "Running", "message": fmt.Sprintf("%08d", i),
					"conditions": []object{
						{"type": "Ready", "status": "True", "reason": fmt.Sprintf("Round%08d", i)},
						{"type": "PodScheduled", "status": "True"},
					},
				}})
			},
		}, {
			name: "apply-configmap", title: "server-side apply, config map", limit: 750,
			need: func(e *Env, ctx context.Context) error {
				if err := e.namespace(ctx, writing); err != nil {
					return err
				}
				return e.once("applied", func() error {
					return e.fill(ctx, appliedObjects, func(i int) load.Request {
						r := apply(i)
						r.Status = http.StatusCreated
						return r
					})
				})
			},
			request: func(i int) load.Request { return apply(appliedObjects + i) },
		}, {
			name: "delete-configmap", title: "DELETE config map", limit: 420, count: deletedObjects,
			need: func(e *Env, ctx context.Context) error {
				if err := e.namespace(ctx, writing); err != nil {
					return err
				}
				n := deletedObjects
				if e.Profiling {
					n *= 2
				}
				return e.once("deleted", func() error {
					return e.fill(ctx, n, func(i int) load.Request {
						return post(writtenMaps, configMap(fmt.Sprintf(deletedMapsName, i), i))
					})
				})
			},
			request: func(i int) load.Request {
				return load.Request{Method: http.MethodDelete, Path: writtenMaps + "/" + fmt.Sprintf(deletedMapsName, i), MinSize: 50}
			},
		},
	} {
		all = append(all, w.workload())
	}
	return all
}()

// status returns the status of an unexpected response, 0 for other errors.
func status(err error) int {
	var answer *load.StatusError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return 0
}
