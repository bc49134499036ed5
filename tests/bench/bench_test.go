package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/bench/floor"
	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
	"triune.dev/tests/bench/workload"
	"triune.dev/tests/tools"
)

// The test binary is also the program of the floor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "floor" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		if err := floor.Run(ctx, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func self(t *testing.T) []string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{path, "floor"}
}

func TestOneCoreIsNotEnough(t *testing.T) {
	err := check(1)
	if !errors.Is(err, ErrMachine) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	if err := check(2); err != nil {
		t.Errorf("two cores: %v", err)
	}
}

func TestUnknownNamesAreRefused(t *testing.T) {
	if _, err := choose([]string{report.Ours, "etcd"}); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("a server that there is not: %v", err)
	}
	o := Options{Match: regexp.MustCompile("^nothing$"), Subjects: []string{report.Floor}, Log: io.Discard, Rounds: 1}
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("a pattern that matches nothing ran")
	}
}

func TestSelectedAndGrouped(t *testing.T) {
	all := []workload.Workload{{Name: "a-1", Group: "a"}, {Name: "b-1", Group: "b", Slow: true}, {Name: "a-2", Group: "a"}, {Name: "aside", Group: "c", Aside: true}}
	names := func(o Options) string {
		var parts []string
		for _, g := range group(selected(append([]workload.Workload(nil), all...), o)) {
			for _, w := range g {
				parts = append(parts, w.Name)
			}
			parts = append(parts, "|")
		}
		return strings.Join(parts, " ")
	}
	for want, o := range map[string]Options{
		"a-1 a-2 | b-1 |": {Match: regexp.MustCompile("")},
		"a-1 a-2 |":       {Match: regexp.MustCompile(""), Quick: true},
		"a-1 | b-1 |":     {Match: regexp.MustCompile("-1$")},
		"b-1 |":           {Match: regexp.MustCompile("b"), Quick: true},
		"aside |":         {Match: regexp.MustCompile("^aside")},
	} {
		if got := names(o); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestStartsOfARun checks that quick runs start each server three times for first calls and
// full ones five times, in the first round, and that all starts have the workloads of the
// first one, in the same order.
func TestStartsOfARun(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		starts  int
	}{
		"quick":            {Options{Match: regexp.MustCompile(""), Quick: true}, 3},
		"full":             {Options{Match: regexp.MustCompile("")}, 5},
		"quick, by name":   {Options{Match: regexp.MustCompile("^(idle|list-pods|get-pod)"), Quick: true}, 3},
		"full, by name":    {Options{Match: regexp.MustCompile("^list-pods-table$")}, 5},
		"without any read": {Options{Match: regexp.MustCompile("^idle-cpu$")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			groups := group(selected(workload.All(), test.options))
			var first, starts []string
			for i, workloads := range groups {
				if workloads[0].Group != groups[0][0].Group {
					continue
				}
				var names []string
				for _, w := range workloads {
					if w.Start != workloads[0].Start {
						t.Errorf("%s, start %d, shares a server with start %d", w.Name, w.Start, workloads[0].Start)
					}
					names = append(names, w.Name)
				}
				if i == 0 {
					first = names
				}
				starts = append(starts, strings.Join(names, " "))
			}
			if len(starts) != test.starts {
				t.Errorf("%d starts: %q", len(starts), starts)
			}
			for _, further := range starts[1:] {
				if further != starts[1] || !strings.Contains(strings.Join(first, " "), further) {
					t.Errorf("a further start has %q, the first one %q", further, first)
				}
			}
		})
	}
}

func TestRowsAreInTheOrderOfTheFirstStart(t *testing.T) {
	result := &report.Result{}
	for _, name := range []string{"memory-after", "list-custom-json", "get-pod", "start"} {
		result.Find(report.Row{Workload: name})
	}
	Order(result)
	var got []string
	for _, row := range result.Rows {
		got = append(got, row.Workload)
	}
	if diff := cmp.Diff([]string{"start", "get-pod", "list-custom-json", "memory-after"}, got); diff != "" {
		t.Error(diff)
	}
}

// measured runs workloads against the floor in a separate process.
func measured(t *testing.T, command []string, workloads ...workload.Workload) *report.Result {
	t.Helper()
	result := &report.Result{Subjects: []string{report.Floor}}
	r := &run{
		Options: Options{Quick: true, Scale: 1, Floor: command, Log: io.Discard},
		subject: subject{name: report.Floor}, sizes: map[string]int64{}, result: result,
	}
	if err := r.group(t.Context(), workloads); err != nil {
		t.Fatal(err)
	}
	return result
}

// answers returns a workload of requests for one path.
func answers(name, path string) workload.Workload {
	return workload.Workload{
		Name: name, Title: name, Figure: report.Seconds,
		Run: func(ctx context.Context, e *workload.Env, publish workload.Publish) error {
			conns := load.DialAll(2, e.Targets...)
			defer load.CloseAll(conns)
			publish("early", 0, report.Sample{Value: 1})
			result, err := load.Closed{MinOps: 20, MaxOps: 20}.Run(ctx, conns, func(int) load.Request { return load.Request{Path: path} })
			if err != nil {
				return err
			}
			publish("", 0, report.Sample{Ops: result.Ops, Value: result.Wall.Seconds()})
			return nil
		},
	}
}

func TestWorkloadWithAWrongAnswerHasNoFigureAndOthersHave(t *testing.T) {
	result := measured(t, self(t), answers("good", "/bytes/10"), answers("bad", "/bytes/10?status=500"), answers("later", "/bytes/10"))
	for _, row := range result.Rows {
		_, ok := row.Headline(report.Floor)
		if want := row.Workload != "bad"; ok != want {
			t.Errorf("%s %s: published is %t", row.Workload, row.Phase, ok)
		}
	}
	if lines := result.Errors(); len(lines) != 1 || !strings.Contains(lines[0], "status 500 instead of 200") {
		t.Errorf("errors: %q", lines)
	}
}

func TestFurtherStartAddsASampleOrLeavesNone(t *testing.T) {
	again := func(path string) workload.Workload {
		w := answers("a", path)
		w.Start = 1
		return w
	}
	good := measured(t, self(t), answers("a", "/bytes/10"), again("/bytes/10"))
	for _, row := range good.Rows {
		if s, ok := row.Headline(report.Floor); !ok || s.N != 2 {
			t.Errorf("%s: %+v, %t", row.Phase, s, ok)
		}
	}
	bad := measured(t, self(t), answers("a", "/bytes/10"), again("/bytes/10?status=500"))
	for _, row := range bad.Rows {
		if s, ok := row.Headline(report.Floor); ok {
			t.Errorf("%s: %+v though a further start failed", row.Phase, s)
		}
	}
	if len(good.Rows) != 2 || len(bad.Rows) != 2 {
		t.Errorf("%d and %d rows", len(good.Rows), len(bad.Rows))
	}
}

func TestServerThatDoesNotStartIsOneLineForEachRow(t *testing.T) {
	result := measured(t, []string{"/bin/sh", "-c", "echo no certificate; exit 3"}, answers("a", "/readyz"), answers("b", "/readyz"))
	lines := result.Errors()
	if len(lines) != 2 {
		t.Fatalf("errors: %q", lines)
	}
	for _, line := range lines {
		if !strings.Contains(line, "start floor") || strings.Contains(line, "\n") {
			t.Errorf("got %q", line)
		}
	}
}

func TestServerWhosePortIsInUseIsOneLine(t *testing.T) {
	// The first floor takes a port, and the second one gets the same.
	up, err := startFloor(t.Context(), self(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := up.close(); err != nil {
			t.Error(err)
		}
	}()
	taken := strings.TrimPrefix(up.env.Targets[0].URL, "https://")
	result := measured(t, []string{"/bin/sh", "-c", `exec "$0" floor "$@" -addr=` + taken, self(t)[0]}, answers("a", "/readyz"))
	if lines := result.Errors(); len(lines) != 1 || !strings.Contains(lines[0], "start floor") {
		t.Errorf("errors: %q", lines)
	}
}

func TestTopOfAProfile(t *testing.T) {
	text := `File: triune
Type: cpu
Showing nodes accounting for 2s, 50% of 4s total
      flat  flat%   sum%        cum   cum%
     1.05s 18.01% 21.78%      1.31s 22.47%  pkg.(*T).Handles (inline)
         0     0% 21.78%      1.01s 17.32%  other.F
`
	want := []line{{"18.01%", "22.47%", "pkg.(*T).Handles (inline)"}, {"0%", "17.32%", "other.F"}}
	if diff := cmp.Diff(want, parseTop(text), cmp.AllowUnexported(line{})); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyWhatIsBetweenTheMarksIsReplaced(t *testing.T) {
	m := marks{"<!-- begin -->", "<!-- end -->"}
	page := "before\n" + m.begin + "\nold\n" + m.end + "\nafter\n"
	got, err := m.replace(page, "new\n")
	if want := "before\n" + m.begin + "\nnew\n" + m.end + "\nafter\n"; err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := m.replace("no marks", "x"); !errors.Is(err, errNoMarks) {
		t.Errorf("without marks: %v", err)
	}
}

func TestProfilesPageHasMarks(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/benchmarks/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := profileMarks.replace(string(page), ""); err != nil {
		t.Error(err)
	}
}

func TestCommandReproduces(t *testing.T) {
	for want, o := range map[string]Options{
		"make bench":                        {Match: regexp.MustCompile(""), Rounds: DefaultRounds},
		"make bench ROUNDS=1":               {Match: regexp.MustCompile(""), Rounds: 1},
		"make bench-quick":                  {Match: regexp.MustCompile(""), Quick: true, Rounds: 1},
		"make bench WORKLOAD='^list|get$'":  {Match: regexp.MustCompile("^list|get$"), Rounds: DefaultRounds, Subjects: Subjects()},
		"make bench SERVERS='floor,triune'": {Match: regexp.MustCompile(""), Rounds: DefaultRounds, Subjects: []string{"floor", "triune"}},
	} {
		if got := Command(o); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
