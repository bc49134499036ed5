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

// Process is a server process to be measured. Replicas have the same name and are added up.
type Process struct {
	Name string
	PID  int
}

// Env is a running server for a workload. It must not be used concurrently.
type Env struct {
	Subject Subject
	// Quick selects short runs.
	Quick bool
	// Scale multiplies the sizes of large workloads.
	Scale float64
	// Targets are the replicas that receive requests.
	Targets []load.Target
	// Admin is a member of system:masters, Reader one of the group [Readers], and Nobody a
	// user with the default permissions. They use the first replica.
	Admin, Reader, Nobody load.Target
	// AuditBytes returns the size of the servers' audit logs; nil without them.
	AuditBytes func() (int64, error)
	// Hop has the targets in the middle of the chain of tiers; nil without tiers.
	Hop map[string]load.Target
	// Processes returns the current processes of the server.
	Processes func() []Process
	// Started is the time of the start, until readyz succeeded.
	Started time.Duration
	// Restart kills the serving process and starts it again; nil if that is not possible.
	Restart func(context.Context) error
	// Sizes are the sizes of response bodies by workload. The floor uses them, too.
	Sizes map[string]int64
	// Profiling is set if some servers are profiled in this round, for which their load is
	// repeated.
	Profiling bool
	// Profile takes profiles of some length, in whole seconds, while again repeats the load
	// of a workload; nil if this server is not profiled.
	Profile func(ctx context.Context, length time.Duration, again func(context.Context) error)

	have    map[string]bool
	filled  bool          // by a preparation without a first call after it
	touched int           // number of updates of watched objects
	passed  report.Sample // of a request with hardly any work in the chain
	highest report.Sample // the measurement with the highest peak of resident memory
	victim  load.Target   // the reader beside attacks
}

// loadConns is the number of connections of the closed loops.
const loadConns = 32

func (e *Env) conns(n int) []*load.Conn { return load.DialAll(n, e.Targets...) }

// pick returns quick or full, depending on the run.
func pick[T any](e *Env, quick, full T) T {
	if e.Quick {
		return quick
	}
	return full
}

// scaled returns the size of a large workload, at least least.
func (e *Env) scaled(n, least int) int { return max(least, int(float64(n)*e.Scale)) }

// once runs a preparation at its first call for a server.
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

// clocks has the CPU times of all processes.
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

// per returns a sample with the CPU time of each process divided by ops.
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

// spent runs f and returns the CPU time that it used.
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

// measure runs a load and returns a sample of it, with the memory of the servers at its
// end.
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
	if s.Memory, err = e.memory(); err != nil {
		return report.Sample{}, err
	}
	if s.Figure(report.Peak) > e.highest.Figure(report.Peak) {
		e.highest = s
	}
	return s, nil
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

// resident returns the memory of all processes, in bytes.
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

// translate turns a request to an API server into one to the floor with as many bytes.
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

// fill sends n requests that expect 201 or, for patches, 200.
func (e *Env) fill(ctx context.Context, n int, next load.Next) error {
	conns := e.conns(loadConns)
	defer load.CloseAll(conns)
	_, err := load.Closed{MinOps: n, MaxOps: n}.Run(ctx, conns, next)
	return err
}

// send sends one request on its own connection.
func (e *Env) send(ctx context.Context, r load.Request) ([]byte, error) {
	conn := load.Dial(e.Targets[0])
	defer conn.Close()
	return conn.Get(ctx, r)
}

// dial establishes all connections before the measurement, which must not include
// handshakes.
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

// join appends queries to a path.
func join(path string, queries ...string) string {
	if len(queries) == 0 {
		return path
	}
	return path + "?" + strings.Join(queries, "&")
}
