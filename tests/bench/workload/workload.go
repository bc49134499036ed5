package workload

import (
	"context"
	"errors"
	"time"

	"triune.dev/tests/bench/report"
)

// Workload is a row, or several, of the benchmarks.
type Workload struct {
	// Name is matched by patterns: list-pods-json.
	Name string
	// Title is the name of the row in tables.
	Title string
	Group string
	// Start distinguishes the servers of a group: workloads with the same group and start
	// share a server. A workload on a further start, from 1 on, has the name of a workload
	// of the first one, and adds samples to its rows; a run does so once.
	Start int
	// Figure stands for the rows; with several phases, for that of Phase.
	Figure report.Figure
	Limits map[string]float64 // limits for Triune, by phase
	// Slow workloads are left out of quick runs, and run once in others. Long ones are left
	// out of quick runs.
	Slow, Long bool
	// Audited servers log the requests of the group by [AuditPolicy].
	Audited bool
	// Aside workloads only run if a pattern names them.
	Aside bool
	// Only restricts the subjects; nil allows all.
	Only func(Subject) bool
	// Run measures, and publishes each row as soon as it is known.
	Run func(context.Context, *Env, Publish) error
}

// Publish receives the measurement of one phase; Size is 0 unless the phase is a size.
type Publish func(phase string, size float64, s report.Sample)

// Row returns the row of a phase of the workload.
func (w Workload) Row(phase string, size float64) report.Row {
	return report.Row{
		Workload: w.Name, Title: w.Title, Group: w.Group, Phase: phase, Size: size,
		Figure: w.Figure, Limit: w.Limits[phase],
	}
}

// The phases of reads.
const (
	Cold    = "cold"
	Warm    = "warm"
	Updates = "100 updates/s"
)

// Delivery is the phase of watches from which the cost of the updates is subtracted.
const Delivery = "less the updates"

// Applies reports whether the workload is meant for a subject.
func (w Workload) Applies(s Subject) bool {
	if w.Only != nil {
		return w.Only(s)
	}
	return true
}

// Subject describes a server to a workload: only whether the workload applies.
type Subject struct {
	Floor bool // constant bodies, no API
	Tiers bool // three processes
	// Replicated means that each tier has several replicas.
	Replicated bool
}

func api(s Subject) bool { return !s.Floor }

// single is for large or growing workloads, for which replicas would give the same result.
func single(s Subject) bool { return api(s) && !s.Replicated }

func tiers(s Subject) bool { return s.Tiers }

// ErrNoSize is returned for the floor if no server has answered yet, because it uses the
// sizes of their bodies.
var ErrNoSize = errors.New("no server has answered this before, so the size is not known")

// All returns the workloads, in the order in which they run.
func All() []Workload {
	var all []Workload
	for _, part := range [][]Workload{starting, reads, firstCalls, watching, idle, writes, afterwards, scanning, definitions, fanOut, storms, large, mixed, hops, growth, chain, attacks} {
		all = append(all, part...)
	}
	return all
}

// calmed is how long after a load a server has collected its garbage and returned memory,
// if it does so at all.
const calmed = 8 * time.Second

// settle is how long after the last response the CPU time of the servers is counted,
// because their work for a request may continue after it.
const settle = 50 * time.Millisecond
