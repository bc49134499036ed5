package workload

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// Process is a server process that is accounted for. Replicas have the same name
// and are added up.
type Process struct {
	Name string
	PID  int
}

// Env is a running server as a workload sees it. It belongs to one goroutine.
type Env struct {
	Subject Subject
	// Quick asks for short runs.
	Quick bool
	// Scale multiplies the sizes of large workloads.
	Scale float64
	// Targets are the replicas that take requests.
	Targets []load.Target
	// Admin is a member of system:masters, Reader one of the group [Readers], Nobody a user
	// with the rights that everybody has. They ask the first replica.
	Admin, Reader, Nobody load.Target
	// AuditBytes is how much the servers have logged of requests; nil where they do not.
	AuditBytes func() (int64, error)
	// Hop returns a target in the middle of the tiers; nil elsewhere.
	Hop map[string]load.Target
	// Processes lists the server's processes as they are now.
	Processes func() []Process
	// Started is how long the start took, until readyz was green.
	Started time.Duration
	// Restart kills the serving process and starts it again; nil where it is not
	// possible.
	Restart func(context.Context) error
	// Sizes are the bodies that servers have answered with, by workload. They are
	// shared with the floor, which has to answer with as much.
	Sizes map[string]int64
	// Profiling tells that profiles of some servers are taken in this round, for which
	// their load is on once more.
	Profiling bool
	// Profile takes profiles of some length, in whole seconds, while again has the load of
	// a workload on; nil does not profile this server.
	Profile func(ctx context.Context, length time.Duration, again func(context.Context) error)

	have    map[string]bool
	filled  bool          // by a step of preparation that no first call came after
	touched int           // updates of watched objects
	passed  report.Sample // by a request that the chain has hardly anything to do with
	victim  load.Target   // who reads beside attacks
}

// loadConns is how many connections the closed loops use.
const loadConns = 32

func (e *Env) conns(n int) []*load.Conn { return load.DialAll(n, e.Targets...) }

// pick is short where the run is quick.
func pick[T any](e *Env, quick, full T) T {
	if e.Quick {
		return quick
	}
	return full
}

// scaled is a size of a large workload, at least least.
func (e *Env) scaled(n, least int) int { return max(least, int(float64(n)*e.Scale)) }

// once runs a step of preparation at its first call for a server.
func (e *Env) once(name string, step func() error) error {
	if e.have[name] {
		return nil
	}
	if e.have == nil {
		e.have = map[string]bool{}
	}
	if err := step(); err != nil {
		return fmt.Errorf("prepare %s: %w", name, err)
	}
	e.have[name], e.filled = true, true
	return nil
}

// clocks are the processor times of all processes.
type clocks struct {
	server map[string]time.Duration
	client time.Duration
}

func (e *Env) clocks() (clocks, error) {
	now := clocks{server: map[string]time.Duration{}}
	for _, p := range e.Processes() {
		t, err := accounting.CPU(p.PID)
		if err != nil {
			return clocks{}, fmt.Errorf("%s: %w", p.Name, err)
		}
		now.server[p.Name] += t
	}
	var err error
	now.client, err = accounting.OwnCPU()
	return now, err
}

func (c clocks) since(before clocks) clocks {
	d := clocks{server: map[string]time.Duration{}, client: c.client - before.client}
	for name, t := range c.server {
		d.server[name] = t - before.server[name]
	}
	return d
}

// per is a sample with the processor time of each process divided by ops.
func (c clocks) per(ops int) report.Sample {
	s := report.Sample{Ops: ops, CPU: map[string]float64{}}
	for name, t := range c.server {
		s.CPU[name] = micro(t) / float64(ops)
	}
	s.Client = micro(c.client) / float64(ops)
	return s
}

func micro(t time.Duration) float64 { return float64(t) / float64(time.Microsecond) }

func milli(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }

// spent runs f and returns the processor time it has cost.
func (e *Env) spent(ctx context.Context, f func() error) (clocks, error) {
	before, err := e.clocks()
	if err != nil {
		return clocks{}, err
	}
	if err := f(); err != nil {
		return clocks{}, err
	}
	if err := pause(ctx, settle); err != nil {
		return clocks{}, err
	}
	after, err := e.clocks()
	return after.since(before), err
}

// measure runs a load and makes a sample of it, with the memory that the servers
// hold at its end.
func (e *Env) measure(ctx context.Context, run func() (load.Result, error)) (report.Sample, error) {
	if err := e.resetPeaks(); err != nil {
		return report.Sample{}, err
	}
	var result load.Result
	spent, err := e.spent(ctx, func() (err error) {
		result, err = run()
		return err
	})
	if err != nil {
		return report.Sample{}, err
	}
	if result.Ops == 0 {
		return report.Sample{}, fmt.Errorf("%w: nothing was done", load.ErrAnswer)
	}
	s := spent.per(result.Ops)
	s.Rate = result.Rate()
	s.P50, s.P99 = milli(result.P50), milli(result.P99)
	s.Wire = float64(result.Wire) / float64(result.Ops)
	s.Body = float64(result.Bodies) / float64(result.Ops)
	s.Memory, err = e.memory()
	return s, err
}

func (e *Env) resetPeaks() error {
	for _, p := range e.Processes() {
		if err := accounting.ResetPeak(p.PID); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) memory() (map[string]accounting.Memory, error) {
	all := map[string]accounting.Memory{}
	for _, p := range e.Processes() {
		m, err := accounting.MemoryOf(p.PID)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		all[p.Name] = all[p.Name].Plus(m)
	}
	return all, nil
}

// resident is the memory of all processes, in bytes.
func (e *Env) resident() (float64, error) {
	all, err := e.memory()
	return float64(report.Sample{Memory: all}.AllMemory().Resident), err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// translate turns a request to an API server into one to the floor that costs as
// many bytes.
func (e *Env) translate(name string, r load.Request) (load.Request, error) {
	if !e.Subject.Floor {
		return r, nil
	}
	size, ok := e.Sizes[name]
	if !ok {
		return r, ErrNoSize
	}
	status := r.Status
	if status == 0 {
		status = http.StatusOK
	}
	r.Path = fmt.Sprintf("/bytes/%d?status=%d", size, status)
	r.MinSize, r.MaxSize = size, size
	r.Encoding = ""
	return r, nil
}

// fill sends n requests whose answers are 201 or, of patches, 200.
func (e *Env) fill(ctx context.Context, n int, next load.Next) error {
	conns := e.conns(loadConns)
	defer load.CloseAll(conns)
	_, err := load.Closed{MinOps: n, MaxOps: n}.Run(ctx, conns, next)
	return err
}

// send is one request on a connection of its own.
func (e *Env) send(ctx context.Context, r load.Request) ([]byte, error) {
	conn := load.Dial(e.Targets[0])
	defer conn.Close()
	return conn.Get(ctx, r)
}

// dial makes every connection before it is measured: a handshake is no part of a
// request.
func (e *Env) dial(ctx context.Context, conns []*load.Conn) error {
	path := "/version"
	if e.Subject.Floor {
		path = "/readyz"
	}
	for _, c := range conns {
		if _, err := c.Get(ctx, load.Request{Path: path}); err != nil {
			return err
		}
	}
	return nil
}

// join puts queries behind a path.
func join(path string, queries ...string) string {
	if len(queries) == 0 {
		return path
	}
	return path + "?" + strings.Join(queries, "&")
}
