package workload

import (
	"context"
	"fmt"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// mixed is the load of a cluster: of 100 requests 50 renew leases of nodes, 15 patch the
// status of pods, 10 record events, 20 read a pod, and 5 list the pods of a node. A cluster
// of 5,000 nodes sends about a thousand requests per second. The rate is raised until the
// 99th percentile exceeds the Kubernetes objective of one second twice in a row, because a
// disk may stall once; the figure is the last rate before that.
var mixed = []Workload{{
	Name: "mixed", Title: "a cluster's mix of requests: highest rate with p99 below 1 s", Group: "mixed load", Figure: report.PerSecond, Slow: true, Only: api,
	Run: runMixed,
}}

const (
	objective  = time.Second
	leases     = 1000
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
	eventsPath = "/api/v1/namespaces/" + namespace + "/events"
)

func leaseName(i int) string { return fmt.Sprintf("node-%d", i%leases) }

func runMixed(ctx context.Context, e *Env, publish Publish) error {
	if err := e.pods(ctx); err != nil {
		return err
	}
	if err := e.once("leases", func() error {
		return e.fill(ctx, leases, func(i int) load.Request {
			return post(leasesPath, object{"metadata": object{"name": leaseName(i)}, "spec": object{"holderIdentity": leaseName(i), "leaseDurationSeconds": 40}})
		})
	}); err != nil {
		return err
	}
	conns := e.conns(256)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	offset, missed, best := 0, false, report.Sample{}
	for rate := 100.0; rate < 100_000; {
		from := offset
		result, err := load.Paced{PerSecond: rate, For: pick(e, 2*second, 8*second)}.Run(ctx, conns, func(i int) load.Request { return mix(from + i) })
		if err != nil {
			return err
		}
		offset += result.Ops + len(conns)
		if result.P99 > objective {
			if missed {
				break
			}
			missed = true
			continue
		}
		missed = false
		best = report.Sample{Ops: result.Ops, Value: rate, Rate: result.Rate(), P50: milli(result.P50), P99: milli(result.P99)}
		rate *= 1.25
	}
	if best.Value == 0 {
		return fmt.Errorf("%w: p99 is above %v at the lowest rate", load.ErrAnswer, objective)
	}
	var err error
	if best.Memory, err = e.memory(); err != nil {
		return err
	}
	publish("", 0, best)
	e.profile(ctx, func(ctx context.Context) error {
		_, err := load.Paced{PerSecond: best.Value / 2, For: profileFor}.Run(ctx, conns, func(i int) load.Request { return mix(offset + i) })
		return err
	})
	return nil
}

// mix returns the i-th request of the mix.
func mix(i int) load.Request {
	switch slot := i * 37 % 100; {
	case slot < 50:
		return patch(leasesPath+"/"+leaseName(i), mergePatch, object{"spec": object{"renewTime": time.Unix(int64(i), 0).UTC().Format("2006-01-02T15:04:05.000000Z")}})
	case slot < 65:
		return patch(podsPath+"/"+podName(i%pods)+"/status", strategicPatch, object{"status": object{"phase": "Running", "message": fmt.Sprintf("%08d", i)}})
	case slot < 75:
		return post(eventsPath, object{
			"metadata":       object{"name": fmt.Sprintf("event-%d", i)},
			"involvedObject": object{"kind": "Pod", "name": podName(i % pods), "namespace": namespace},
			"reason":         "Pulled", "message": "the image is there", "type": "Normal",
		})
	case slot < 95:
		return load.Request{Path: join(podsPath+"/"+podName(i%pods), "resourceVersion=0"), Accept: jsonType, MinSize: 1000}
	default:
		return load.Request{Path: join(podsPath, "fieldSelector=spec.nodeName%3D"+nodeName(i), "resourceVersion=0"), Accept: jsonType, MinSize: 1000}
	}
}
