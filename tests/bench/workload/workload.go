package workload

import (
	"context"
	"errors"
	"time"

	"triune.dev/tests/bench/report"
)

// Workload is one thing to measure.
type Workload struct {
	// Name is what a pattern selects: list-pods-json.
	Name string
	// Title is the row's name in tables.
	Title string
	Group string
	// Start tells apart the servers of a group: workloads have one together if both are
	// the same. What runs on a further one, from 1 on, has the name of a workload that
	// runs on the first, and takes more samples for its rows; a run does so once.
	Start int
	// Figure stands for the rows, in the phase Phase if there are several.
	Figure report.Figure
	Limits map[string]float64 // what Triune must reach, by phase
	// Slow workloads are left out of quick runs, and run once in others; Long ones are left
	// out of quick runs.
	Slow, Long bool
	// Audited: the servers of its group log requests as [AuditPolicy] says.
	Audited bool
	// Aside: it runs only where a pattern names it.
	Aside bool
	// Only restricts it to some subjects; nil is all.
	Only func(Subject) bool
	// Run measures, and hands over each row as soon as it is known.
	Run func(context.Context, *Env, Publish) error
}

// Publish takes the measurement of one phase; Size is 0 but where the phase is a
// size.
type Publish func(phase string, size float64, s report.Sample)

// Row is the row of a phase of the workload.
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

// Delivery is the phase of watches in which the updates are taken off that make the events.
const Delivery = "less the updates"

// Applies tells whether the workload is meant for a subject.
func (w Workload) Applies(s Subject) bool {
	if w.Only != nil {
		return w.Only(s)
	}
	return true
}

// Subject is what a workload may know of a server: nothing but what decides
// whether it applies.
type Subject struct {
	Floor bool // constant bodies, no API
	Tiers bool // three processes
	// Replicated: each of them more than once.
	Replicated bool
}

func api(s Subject) bool { return !s.Floor }

// single is for what is large or grows, of which replicas would show the same again.
func single(s Subject) bool { return api(s) && !s.Replicated }

func tiers(s Subject) bool { return s.Tiers }

// ErrNoSize is returned for the floor where no server has answered yet: its bodies
// are as large as theirs.
var ErrNoSize = errors.New("no server has answered this before, so the size is not known")

// All lists the workloads, in the order in which they run.
func All() []Workload {
	var all []Workload
	for _, part := range [][]Workload{starting, reads, firstCalls, watching, idle, writes, afterwards, scanning, definitions, fanOut, storms, large, mixed, hops, growth, chain, attacks} {
		all = append(all, part...)
	}
	return all
}

// calmed is how long after a busy time a server has collected what that has left, and given
// it back, if it does so at all.
const calmed = 8 * time.Second

// settle is how long after the last answer the servers' time is still counted: what
// they do for a request after answering it belongs to it.
const settle = 50 * time.Millisecond
