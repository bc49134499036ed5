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
)

// Options say what to measure. All fields but Floor, Profiles and Save
// must be set.
type Options struct {
	// Match selects workloads by name.
	Match *regexp.Regexp
	// Quick runs are short and leave out slow workloads.
	Quick bool
	// Scale multiplies the sizes of large workloads.
	Scale float64
	// Rounds is how often every server runs every workload, but for the slow ones and
	// those of further starts, which run once.
	Rounds int
	// Subjects to measure, of [Subjects].
	Subjects []string
	// Floor is the command line of a program that runs floor.Run; needed where the
	// floor is one of the subjects.
	Floor []string
	// Profiles is a directory for profiles of Triune's processes; empty takes none.
	Profiles string
	// Save is called with what there is so far whenever a group of workloads has run on
	// all servers; nil saves nothing. Its error ends the run.
	Save func(*report.Result) error
	// Log gets a line about each step.
	Log io.Writer
}

// ErrMachine is returned for a machine on which nothing can be measured.
var ErrMachine = errors.New("this machine cannot measure")

// check finds out whether figures of this machine would mean anything.
func check(cores int) error {
	if cores < 2 {
		return fmt.Errorf("%w: %d core, on which the load generator would wait for the server; two are needed", ErrMachine, cores)
	}
	return nil
}

// Run measures. An error is about the whole run; what fails of it is in the result.
func Run(ctx context.Context, o Options) (*report.Result, error) {
	if err := check(runtime.NumCPU()); err != nil {
		return nil, err
	}
	chosen, err := choose(o.Subjects)
	if err != nil {
		return nil, err
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
		Date: time.Now().UTC(), Rounds: o.Rounds, Quick: o.Quick, Scale: o.Scale, Subjects: o.Subjects,
		Sizes: map[string]int64{}, // the same for all subjects, see workload.Env
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

// group puts workloads together that share a server, in their order.
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

// Order sorts rows as the first workloads of their names are; a row is found when the
// first subject has it.
func Order(result *report.Result) {
	position := map[string]int{}
	for i, w := range workload.All() {
		if _, ok := position[w.Name]; !ok {
			position[w.Name] = i
		}
	}
	slices.SortStableFunc(result.Rows, func(a, b *report.Row) int { return position[a.Workload] - position[b.Workload] })
}

// run is one round of one group of workloads against one subject.
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

// group returns an error only when ctx has ended.
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
		r.log("%s", report.OneLine(err)) // its figures have been taken
	}
	return nil
}

func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// one runs a workload. Its rows are recorded when it has succeeded as a whole.
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
		return // the floor has nothing to be compared with
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

// profiler takes the profiles of a workload's load, if this server's are wanted.
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

// firstPhase is the phase of a row that stands for a workload without any.
func firstPhase(w workload.Workload) string {
	phases := slices.Sorted(maps.Keys(w.Limits))
	if len(phases) == 0 {
		return ""
	}
	return phases[len(phases)-1]
}
