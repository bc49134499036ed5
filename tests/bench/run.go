package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"time"

	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/bench/report"
	"triune.dev/tests/bench/workload"
	"triune.dev/tests/cluster"
)

// Options configure a run. All fields except Floor, Profiles and Save must be set.
type Options struct {
	// Match selects workloads by name.
	Match *regexp.Regexp
	// Quick runs are short and leave out slow workloads.
	Quick bool
	// Scale multiplies the sizes of large workloads.
	Scale float64
	// Rounds is the number of runs of each workload on each server, except for slow ones
	// and those of further starts, which run once.
	Rounds int
	// Subjects are the subjects to measure, of [Subjects].
	Subjects []string
	// Builds are further subjects: other builds of triune.
	Builds []Build
	// Floor is the command line of a program that runs floor.Run; required if the floor is
	// one of the subjects.
	Floor []string
	// Profiles is a directory for profiles of Triune's processes; without one there are no
	// profiles.
	Profiles string
	// Save is called with the current result whenever a group of workloads has run on all
	// servers; nil saves nothing. Its error ends the run.
	Save func(*report.Result) error
	// Log receives a line about each step.
	Log io.Writer
}

// Build is another build of triune, which is measured beside this one.
type Build struct {
	Name string // of its column
	Path string // of the program
}

// ErrMachine is returned if nothing can be measured on this machine.
var ErrMachine = errors.New("this machine cannot measure")

// check reports whether measurements on this machine would be meaningful.
func check(cores int) error {
	if cores < 2 {
		return fmt.Errorf("%w: %d core, on which the load generator would wait for the server; two are needed", ErrMachine, cores)
	}
	return nil
}

// Run measures. An error concerns the whole run; failures of parts are in the result.
func Run(ctx context.Context, o Options) (*report.Result, error) {
	if err := check(runtime.NumCPU()); err != nil {
		return nil, err
	}
	chosen, err := choose(o.Subjects)
	if err != nil {
		return nil, err
	}
	for _, b := range o.Builds {
		chosen = append(chosen, subject{name: b.Name, topology: cluster.Triune, program: b.Path})
	}
	groups := group(selected(workload.All(), o))
	if len(groups) == 0 {
		return nil, fmt.Errorf("choose workloads: none matches %q", o.Match)
	}
	versions, commit, err := describe(ctx)
	if err != nil {
		return nil, err
	}
	result := &report.Result{
		Machine: accounting.ThisMachine(), Versions: versions, Commit: commit,
		Date: time.Now().UTC(), Rounds: o.Rounds, Quick: o.Quick, Scale: o.Scale,
		Sizes: map[string]int64{}, // shared by all subjects, see workload.Env
	}
	for _, s := range chosen {
		result.Subjects = append(result.Subjects, s.name)
	}
	for round := range o.Rounds {
		for _, workloads := range groups {
			if round > 0 {
				workloads = slices.DeleteFunc(slices.Clone(workloads), func(w workload.Workload) bool { return w.Slow || w.Start > 0 })
			}
			for _, s := range chosen {
				r := &run{Options: o, round: round, subject: s, sizes: result.Sizes, result: result}
				if err := r.group(ctx, workloads); err != nil {
					return nil, err
				}
			}
			if err := save(o, result); err != nil {
				return nil, err
			}
		}
	}
	Order(result)
	return result, nil
}

func save(o Options, result *report.Result) error {
	if o.Save == nil {
		return nil
	}
	Order(result)
	return o.Save(result)
}

// selected are the workloads of a run; those aside only if a pattern names them. A quick one leaves out the slow and long ones unless
// a pattern names them, and has fewer further starts.
func selected(all []workload.Workload, o Options) []workload.Workload {
	return slices.DeleteFunc(all, func(w workload.Workload) bool {
		everything := o.Match.String() == ""
		return !o.Match.MatchString(w.Name) || w.Aside && everything ||
			o.Quick && ((w.Slow || w.Long) && everything || w.Start > workload.QuickStarts)
	})
}

// group groups workloads that share a server, in their order.
func group(all []workload.Workload) [][]workload.Workload {
	type server struct {
		group string
		start int
	}
	var groups [][]workload.Workload
	at := map[server]int{}
	for _, w := range all {
		key := server{w.Group, w.Start}
		i, ok := at[key]
		if !ok {
			i = len(groups)
			at[key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], w)
	}
	return groups
}

// Order sorts rows by the order of the workloads. Rows are added when the first subject has
// them.
func Order(result *report.Result) {
	position := map[string]int{}
	for i, w := range workload.All() {
		if _, ok := position[w.Name]; !ok {
			position[w.Name] = i
		}
	}
	slices.SortStableFunc(result.Rows, func(a, b *report.Row) int { return position[a.Workload] - position[b.Workload] })
}

// run is one round of a group of workloads on one subject.
type run struct {
	Options
	round   int
	subject subject
	sizes   map[string]int64
	result  *report.Result
}

func (r *run) log(format string, args ...any) {
	fmt.Fprintf(r.Log, "%s  round %d  %-14s  %s\n", time.Now().Format(time.TimeOnly), r.round+1, r.subject.name, fmt.Sprintf(format, args...))
}

// group returns an error only if ctx has ended.
func (r *run) group(ctx context.Context, workloads []workload.Workload) error {
	workloads = slices.DeleteFunc(slices.Clone(workloads), func(w workload.Workload) bool { return !w.Applies(r.subject.kind()) })
	if len(workloads) == 0 {
		return nil
	}
	audited := slices.ContainsFunc(workloads, func(w workload.Workload) bool { return w.Audited })
	up, err := r.subject.start(ctx, r.Floor, audited)
	if err != nil {
		for _, w := range workloads {
			r.fail(w, err)
		}
		return ended(ctx)
	}
	up.env.Quick, up.env.Scale, up.env.Sizes = r.Quick, r.Scale, r.sizes
	for _, w := range workloads {
		r.one(ctx, up, w)
		if err := ended(ctx); err != nil {
			return errors.Join(err, up.close())
		}
	}
	if err := up.close(); err != nil {
		r.log("%s", report.OneLine(err)) // it has been measured
	}
	return nil
}

func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// one runs a workload. Its rows are recorded if all of it has succeeded.
func (r *run) one(ctx context.Context, up *server, w workload.Workload) {
	type row struct {
		report.Row
		sample report.Sample
	}
	var rows []row
	up.env.Profiling = r.Profiles != "" && r.round == 0
	up.env.Profile = r.profiler(up, w)
	begin := time.Now()
	err := w.Run(ctx, up.env, func(phase string, size float64, s report.Sample) {
		rows = append(rows, row{w.Row(phase, size), s})
	})
	if errors.Is(err, workload.ErrNoSize) {
		return // nothing to compare with the floor
	}
	if err == nil && len(rows) == 0 {
		err = errors.New("nothing was measured")
	}
	if err != nil {
		r.fail(w, err)
		return
	}
	for _, row := range rows {
		r.result.Find(row.Row).Add(r.subject.name, row.sample, nil)
		phase := row.Phase
		if w.Start > 0 {
			phase = fmt.Sprintf("%s, start %d", phase, w.Start+1)
		}
		r.log("%-28s %-14s %12.1f %s  %v", w.Name, phase, row.sample.Figure(w.Figure), w.Figure, time.Since(begin).Round(time.Millisecond))
	}
}

// profiler returns a function that takes the profiles of a workload's load, if they are
// wanted.
func (r *run) profiler(up *server, w workload.Workload) func(context.Context, time.Duration, func(context.Context) error) {
	if !up.env.Profiling || !r.subject.ours() {
		return nil
	}
	return func(ctx context.Context, length time.Duration, again func(context.Context) error) {
		if err := profile(ctx, r.Profiles, r.subject.name, w.Name, up.profiled, length, again); err != nil {
			r.log("%s: profile: %s", w.Name, report.OneLine(err))
		}
	}
}

func (r *run) fail(w workload.Workload, err error) {
	r.result.Fail(w.Row(firstPhase(w), 0), r.subject.name, err)
	r.log("%s: FAILED: %s", w.Name, report.OneLine(err))
}

// firstPhase returns a phase for the row of a workload that failed before any phase.
func firstPhase(w workload.Workload) string {
	phases := slices.Sorted(maps.Keys(w.Limits))
	if len(phases) == 0 {
		return ""
	}
	return phases[len(phases)-1]
}
