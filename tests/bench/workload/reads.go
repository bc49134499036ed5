package workload

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// read is a workload of one GET: the first time (cold, which firstCalls repeat on further
// starts), then repeatedly (warm), then while its objects are updated.
type read struct {
	name, title string
	group       string
	limit       float64 // µs, warm
	underUpdate float64 // µs, with updates
	need        func(*Env, context.Context) error
	request     func(i int) load.Request
	// items is the number of items in the first response; -1 does not count them, because
	// the body is neither JSON nor compressed JSON.
	items int
	// different is the number of different requests, if there are more than one. Each is
	// sent once before the warm phase, because it would be the first for most objects.
	different int
	// apart reads need their own content, which takes long to write. Quick runs measure
	// their first call on one start.
	apart bool
	// heavy reads are lists, which take a server long: a few suffice for a run.
	heavy  bool
	update func(i int) load.Request
}

func (r read) workload() Workload {
	w := Workload{Name: r.name, Title: r.title, Group: r.group, Figure: report.CPUPerOp, Limits: map[string]float64{Warm: r.limit}, Run: r.run}
	if r.underUpdate > 0 {
		w.Limits[Updates] = r.underUpdate
	}
	return w
}

func (r read) run(ctx context.Context, e *Env, publish Publish) error {
	if !e.Subject.Floor {
		if err := r.first(ctx, e, pick(e, afterCall, afterLoad), publish); err != nil {
			return err
		}
	}
	n := loadConns
	if r.heavy {
		n = pick(e, 8, loadConns)
	}
	conns := e.conns(n)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	next, err := r.next(e)
	if err != nil {
		return err
	}
	// The heap grows to the size that the load needs, and each object is read once.
	warming := load.Closed{For: pick(e, 100*time.Millisecond, time.Second)}
	if r.different > 0 && !e.Subject.Floor {
		warming.MinOps = r.different
	}
	if _, err := warming.Run(ctx, conns, next); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	loop := load.Closed{For: pick(e, time.Second, 5*time.Second)}
	if r.heavy {
		loop.MinOps = pick(e, 1, 2) * n
	}
	warm, err := e.measure(ctx, func() (load.Result, error) { return loop.Run(ctx, conns, next) })
	if err != nil {
		return err
	}
	publish(Warm, 0, warm)
	e.profileReads(ctx, conns, next)
	if e.Subject.Floor || r.update == nil || e.Quick && r.underUpdate == 0 {
		return nil
	}
	if err := r.updated(ctx, e, conns, loop, next, publish); err != nil {
		return fmt.Errorf("with updates: %w", err)
	}
	return nil
}

// cold measures the first response, and checks its content.
func (r read) cold(ctx context.Context, e *Env, after time.Duration, publish Publish) error {
	conns := e.conns(1)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return err
	}
	if err := e.rest(ctx, after); err != nil {
		return err
	}
	request := r.request(0)
	var body []byte
	s, err := e.measure(ctx, func() (load.Result, error) {
		begin, wire := time.Now(), conns[0].Wire()
		var err error
		body, err = conns[0].Get(ctx, request)
		took := time.Since(begin)
		return load.Result{Ops: 1, Wall: took, P50: took, P99: took, Bodies: int64(len(body)), Wire: conns[0].Wire() - wire}, err
	})
	if err != nil {
		return err
	}
	if err := r.inspect(request, body); err != nil {
		return err
	}
	size := int64(len(body))
	// The same content has the same size from every server; only the compression may
	// differ.
	if first, ok := e.Sizes[r.name]; !ok {
		e.Sizes[r.name] = size
	} else if request.Encoding == "" && (size < first-first/20-64 || size > first+first/20+64) {
		return fmt.Errorf("%w: %d bytes, where the first server answered with %d", load.ErrAnswer, size, first)
	}
	publish(Cold, 0, s)
	return nil
}

func (r read) inspect(request load.Request, body []byte) error {
	if r.items < 0 {
		return nil
	}
	if request.Encoding == "gzip" {
		unzip, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return fmt.Errorf("%s: %w: it is not compressed: %w", request, load.ErrAnswer, err)
		}
		if body, err = io.ReadAll(unzip); err != nil {
			return fmt.Errorf("%s: %w", request, err)
		}
	}
	// Every object has one uid.
	if n := bytes.Count(body, []byte(`"uid":"`)); n != r.items {
		return fmt.Errorf("%s: %w: %d objects instead of %d", request, load.ErrAnswer, n, r.items)
	}
	return nil
}

// next returns requests that expect the size of the first response.
func (r read) next(e *Env) (load.Next, error) {
	first, err := e.translate(r.name, r.request(0))
	if err != nil {
		return nil, err
	}
	if e.Subject.Floor {
		return func(int) load.Request { return first }, nil
	}
	size := e.Sizes[r.name]
	return func(i int) load.Request {
		request := r.request(i)
		request.MinSize, request.MaxSize = size-size/20-64, size+size/20+64
		if request.Encoding != "" { // servers compress at levels of their own
			request.MinSize, request.MaxSize = size/4, size*4
		}
		return request
	}, nil
}

// updated measures the same while 100 updates per second change the objects. The cost of
// the updates alone is measured first, and subtracted.
func (r read) updated(ctx context.Context, e *Env, conns []*load.Conn, loop load.Closed, next load.Next, publish Publish) error {
	const perSecond = 100
	writers := e.conns(8)
	defer load.CloseAll(writers)
	if err := e.dial(ctx, writers); err != nil {
		return err
	}
	alone := load.Paced{PerSecond: perSecond, For: pick(e, 1500*time.Millisecond, 3*time.Second)}
	var wrote load.Result
	updates, err := e.spent(ctx, func() (err error) {
		wrote, err = alone.Run(ctx, writers, r.update)
		return err
	})
	if err != nil {
		return err
	}
	both, err := e.measure(ctx, func() (load.Result, error) {
		writing, stop := context.WithCancel(ctx)
		defer stop()
		type outcome struct {
			load.Result
			err error
		}
		done := make(chan outcome, 1)
		go func() {
			result, err := load.Paced{PerSecond: perSecond, For: time.Hour}.Run(writing, writers, r.update)
			done <- outcome{result, err}
		}()
		result, err := loop.Run(ctx, conns, next)
		stop()
		written := <-done
		if err == nil {
			err = written.err
		}
		// Scale the cost of the updates alone to the number of updates during the reads.
		for name, t := range updates.server {
			updates.server[name] = time.Duration(float64(t) * float64(written.Ops) / float64(wrote.Ops))
		}
		wrote = written.Result
		return result, err
	})
	if err != nil {
		return err
	}
	for name, t := range updates.server {
		both.CPU[name] = max(0, both.CPU[name]-micro(t)/float64(both.Ops))
	}
	both.Notes = map[string]float64{"updates/s": wrote.Rate()}
	publish(Updates, 0, both)
	return nil
}

func accepting(accept, path string, queries ...string) func(int) load.Request {
	request := load.Request{Path: join(path, queries...), Accept: accept}
	return func(int) load.Request { return request }
}

const (
	tableType   = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partialType = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

const tableGroup = "reads and writes"

// tableReads are the reads of the table.
var tableReads = func() []read {
	gzipped := func(int) load.Request {
		return load.Request{Path: podsPath, Accept: jsonType, Encoding: "gzip"}
	}
	onePod := func(query ...string) func(i int) load.Request {
		return func(i int) load.Request {
			return load.Request{Path: join(podsPath+"/"+podName(i*7%pods), query...), Accept: jsonType}
		}
	}
	var all []read
	for _, r := range []read{
		{name: "get-pod", title: "GET pod, linearizable, JSON", limit: 120, request: onePod(), items: 1, different: pods},
		{name: "get-pod-rv0", title: "GET pod, resourceVersion=0", limit: 70, request: onePod("resourceVersion=0"), items: 1, different: pods},
		{name: "list-pods-json", title: "LIST 4,000 pods, JSON", limit: 20e3, request: accepting(jsonType, podsPath), items: pods, heavy: true},
		{name: "list-pods-protobuf", title: "LIST 4,000 pods, protobuf", limit: 10e3, request: accepting(protobufType, podsPath), items: -1, heavy: true},
		{name: "list-pods-gzip", title: "LIST 4,000 pods, JSON, gzip", limit: 3e3, underUpdate: 8e3, request: gzipped, items: pods, heavy: true},
		{name: "list-pods-label", title: "LIST, label selector, 80 of 4,000", limit: 500, request: accepting(jsonType, podsPath, "labelSelector=app%3Dapp-7"), items: pods / podApps, heavy: true},
		{name: "list-pods-field", title: "LIST, field selector, 40 of 4,000", limit: 250, request: accepting(jsonType, podsPath, "fieldSelector=spec.nodeName%3Dnode-7"), items: pods / podNodes, heavy: true},
		{name: "list-pods-no-match", title: "LIST that matches no label, 4,000 pods", limit: 200, request: accepting(jsonType, podsPath, noMatch), items: 0, heavy: true},
		{name: "list-pods-table", title: "LIST 500 as Table", limit: 7e3, request: accepting(tableType, podsPath, "limit=500"), items: 500, heavy: true},
		{name: "list-pods-metadata", title: "LIST 4,000 as PartialObjectMetadata", limit: 6e3, request: accepting(partialType, podsPath), items: pods, heavy: true},
	} {
		r.need, r.update = (*Env).pods, touchPod
		r.group = tableGroup
		all = append(all, r)
	}
	return append(all, read{
		name: "list-custom-json", title: "LIST 4,000 custom resources", limit: 8e3, group: tableGroup,
		need: (*Env).widgets, request: accepting(jsonType, widgetsPath), items: widgets, heavy: true, apart: true,
		update: func(i int) load.Request {
			return patch(widgetsPath+fmt.Sprintf("/widget-%d", i%widgets), mergePatch, object{"spec": object{"size": i}})
		},
	})
}()

var reads = func() []Workload {
	var all []Workload
	for _, r := range tableReads {
		all = append(all, r.workload())
	}
	return all
}()

// served waits until a path is answered with 200.
func (e *Env) served(ctx context.Context, path string) error {
	conn := load.Dial(e.Targets[0])
	defer conn.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, fmt.Errorf("%s is not served", path))
	defer cancel()
	for {
		_, err := conn.Get(ctx, load.Request{Path: path})
		if err == nil || !notYet(err) {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// notYet reports whether an error may only mean that the server needs time.
func notYet(err error) bool {
	code := status(err)
	return code == http.StatusNotFound || code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests
}
