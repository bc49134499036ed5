package workload

import (
	"context"
	"fmt"
	"sync"
	"time"

	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

const second = time.Second

// listBytes is the size of the LISTs that are requested ten times concurrently: 500 MB, or
// less on a machine without the memory to decode ten of them.
func listBytes() int { return int(min(500e6, accounting.Available()/60)) }

// schemaBytes is the size of a definition's schema.
const schemaBytes = 20_000

// defined has the cost of a number of CRDs.
type defined struct {
	took     time.Duration // from the first POST until all are served
	spent    clocks
	resident float64 // additional bytes
}

// thing returns the requests that create the CRDs of a group.
func thing(group string) load.Next {
	return func(i int) load.Request {
		return post(crdPath, definition(group, fmt.Sprintf("things%d", i), fmt.Sprintf("Thing%d", i), schemaBytes))
	}
}

// define creates n CRDs in their own group and waits until the last of them is served, and
// then until the servers are idle again.
func (e *Env) define(ctx context.Context, group string, n int) (defined, error) {
	if err := pause(ctx, 12*second); err != nil { // idle, and with OpenAPI documents
		return defined{}, err
	}
	before, err := e.resident()
	if err != nil {
		return defined{}, err
	}
	var d defined
	d.spent, err = e.spent(ctx, func() error {
		begin := time.Now()
		if err := e.fill(ctx, n, thing(group)); err != nil {
			return err
		}
		if err := e.allServed(ctx, group, n); err != nil {
			return err
		}
		d.took = time.Since(begin)
		return pause(ctx, pick(e, calmed, 10*second))
	})
	if err != nil {
		return defined{}, err
	}
	after, err := e.resident()
	d.resident = after - before
	return d, err
}

// defineAgain creates CRDs and waits until they are served, for the length of a profile.
// The CRDs have been measured by then.
func (e *Env) defineAgain(ctx context.Context) error {
	const n = 20
	for begin, round := time.Now(), 0; time.Since(begin) < profileFor; round++ {
		group := fmt.Sprintf("again%d.triune.dev", round)
		if err := e.fill(ctx, n, thing(group)); err != nil {
			return err
		}
		if err := e.allServed(ctx, group, n); err != nil {
			return err
		}
	}
	return nil
}

// allServed lists every kind, a few at a time, until all are served.
func (e *Env) allServed(ctx context.Context, group string, n int) error {
	const askers = 4
	errs := make([]error, askers)
	var asking sync.WaitGroup
	for a := range askers {
		asking.Go(func() {
			for i := a; i < n && errs[a] == nil; i += askers {
				errs[a] = e.served(ctx, fmt.Sprintf("/apis/%s/v1/namespaces/default/things%d", group, i))
			}
		})
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// fewer returns a phase for a run with fewer CRDs than its title says, whose time is not
// comparable.
func fewer(e *Env, n int) string {
	if e.Quick || e.Scale != 1 {
		return fmt.Sprintf("with %d only", n)
	}
	return ""
}

const definitionGroup = "custom resource definitions"

// defining returns the three rows of one run: the first of them does the run, and the
// others publish its figures.
func defining(group string, slow bool, only func(Subject) bool, count func(*Env) int, limits [3]float64, label string) []Workload {
	var made defined
	var n int
	limit := func(i int) map[string]float64 { return map[string]float64{"": limits[i]} }
	return []Workload{
		{
			Name: label + "-served", Title: label + " with 20 kB schemas: until all are served", Group: group, Figure: report.Seconds, Slow: slow, Only: only, Limits: limit(0),
			Run: func(ctx context.Context, e *Env, publish Publish) error {
				n = 0
				var err error
				if made, err = e.define(ctx, "bench.triune.dev", count(e)); err != nil {
					return err
				}
				n = count(e)
				memory, err := e.memory()
				if err != nil {
					return err
				}
				publish(fewer(e, n), 0, report.Sample{Value: made.took.Seconds(), Memory: memory, Notes: map[string]float64{"CRDs": float64(n)}})
				return nil
			},
		}, {
			Name: label + "-cpu", Title: label + ": CPU per CRD", Group: group, Figure: report.CPUPerOp, Slow: slow, Only: only, Limits: limit(1),
			Run: func(ctx context.Context, e *Env, publish Publish) error {
				if n == 0 {
					return fmt.Errorf("%w: no CRDs were measured before", load.ErrAnswer)
				}
				publish("", 0, made.spent.per(n))
				e.profile(ctx, e.defineAgain)
				return nil
			},
		}, {
			Name: label + "-memory", Title: label + ": resident memory per CRD", Group: group, Figure: report.Kilobytes, Slow: slow, Only: only, Limits: limit(2),
			Run: func(_ context.Context, _ *Env, publish Publish) error {
				if n == 0 {
					return fmt.Errorf("%w: no CRDs were measured before", load.ErrAnswer)
				}
				publish("", 0, report.Sample{Value: made.resident / 1e3 / float64(n)})
				return nil
			},
		},
	}
}

var definitions = append(
	defining(definitionGroup, false, api, func(e *Env) int { return pick(e, 50, 300) }, [3]float64{3, 8000, 100}, "300 CRDs"),
	defining("1,000 CRDs", true, single, func(e *Env) int { return e.scaled(1000, 100) }, [3]float64{}, "1,000 CRDs")...)
