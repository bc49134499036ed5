package report

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/bench/accounting"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files instead of comparing them")

// result returns a result with rows of each kind: within the limit, beyond it, failed,
// without a limit, and with sizes.
func result() *Result {
	r := &Result{
		Machine:  accounting.Machine{CPU: "A Processor", Cores: 2, Memory: 16e9, OS: "linux/amd64 6.1"},
		Versions: map[string]string{"kube-apiserver": "v1.36.3", "Go": "1.26"},
		Commit:   "abc1234", Command: "make bench", Date: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC),
		Rounds: 2, Scale: 0.5, Subjects: []string{Peer, Ours, "tiers", Floor},
	}
	add := func(row Row, subject string, samples ...Sample) {
		for _, s := range samples {
			r.Find(row).Add(subject, s, nil)
		}
	}
	cpu := func(values ...float64) Sample {
		s := Sample{Ops: 10, Rate: 12345, P50: 1.5, P99: 20, Client: 30, Wire: 4096, CPU: map[string]float64{}}
		for i, v := range values {
			s.CPU[[]string{"server", "etcd"}[i]] = v
		}
		return s
	}
	get := Row{Workload: "get", Title: "GET pod", Group: "reads", Phase: "warm", Figure: CPUPerOp, Limit: 120}
	add(get, Peer, cpu(300, 70), cpu(340, 80))
	add(get, Ours, cpu(100), cpu(90))
	add(get, Floor, cpu(34), cpu(35))
	list := Row{Workload: "list", Title: "LIST <4,000> pods", Group: "reads", Phase: "warm", Figure: CPUPerOp, Limit: 20e3}
	add(list, Peer, cpu(219e3, 1e3))
	add(list, Ours, cpu(250e3))
	memory := Row{Workload: "idle", Title: "resident, idle", Group: "memory", Figure: Resident, Limit: 150}
	hold := func(mb int64) Sample {
		return Sample{Memory: map[string]accounting.Memory{"server": {Resident: mb * 1e6, Anonymous: mb * 5e5, Peak: mb * 2e6}}}
	}
	add(memory, Peer, hold(300))
	add(memory, Ours, hold(140))
	broken := Row{Workload: "broken", Title: "DELETE", Group: "writes", Figure: CPUPerOp, Limit: 1}
	add(broken, Peer, cpu(500, 200))
	add(broken, Ours, cpu(1))
	r.Fail(broken, Ours, errors.New("DELETE /api/v1/x: status 500 instead of 200: |oops|\nand a log"))
	for _, size := range []float64{1, 4, 16} {
		add(Row{Workload: "grow", Title: "LIST of n", Group: "growth", Phase: fmt.Sprint(size), Size: size, Figure: CPUPerOp}, Ours, cpu(100*size))
	}
	return r
}

func TestPageAndChartsAreWhatTheyWere(t *testing.T) {
	r := result()
	charts := r.Charts("result-")
	var page bytes.Buffer
	if err := r.Markdown(&page, charts); err != nil {
		t.Fatal(err)
	}
	golden := map[string]string{"page.md": page.String()}
	for _, c := range charts {
		golden[c.File] = c.SVG
	}
	if len(charts) != 3 {
		t.Errorf("%d charts", len(charts))
	}
	for name, got := range golden {
		file := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestNoFigureIsPublishedForWorkThatFailed(t *testing.T) {
	row := Row{Workload: "w", Title: "W", Figure: Seconds}
	for name, add := range map[string]func(*Row){
		"in the first round": func(r *Row) {
			r.Add(Ours, Sample{}, errors.New("boom"))
			r.Add(Ours, Sample{Value: 7}, nil)
		},
		"in the last round": func(r *Row) {
			r.Add(Ours, Sample{Value: 7}, nil)
			r.Add(Ours, Sample{}, errors.New("boom"))
		},
	} {
		r := &Result{Subjects: []string{Ours}}
		found := r.Find(row)
		add(found)
		if s, ok := found.Headline(Ours); ok {
			t.Errorf("%s: published %+v", name, s)
		}
		if got := r.Errors(); len(got) != 1 || !strings.Contains(got[0], "boom") {
			t.Errorf("%s: errors %q", name, got)
		}
		var page bytes.Buffer
		if err := r.Markdown(&page, nil); err != nil || strings.Contains(page.String(), "7.00 s") {
			t.Errorf("%s: the page has the figure (%v):\n%s", name, err, page.String())
		}
	}
}

func TestFailReachesEveryPhase(t *testing.T) {
	r := &Result{Subjects: []string{Ours}}
	for _, phase := range []string{"cold", "warm"} {
		r.Find(Row{Workload: "w", Phase: phase}).Add(Ours, Sample{Value: 1}, nil)
	}
	r.Fail(Row{Workload: "w", Phase: "warm"}, Ours, errors.New("boom"))
	for _, row := range r.Rows {
		if _, ok := row.Headline(Ours); ok {
			t.Errorf("phase %s has a figure", row.Phase)
		}
	}
	if len(r.Rows) != 2 {
		t.Errorf("%d rows", len(r.Rows))
	}
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                              "plain",
		"start x: it ended\nlog\nlog":        "start x: it ended",
		"open /var/tmp/secret/place: denied": "open …: denied",
		"GET /api/v1/pods: status 500":       "GET /api/v1/pods: status 500",
		"dial 127.0.0.1:23456: refused":      "dial …: refused",
		"a | b":                              `a \| b`,
		strings.Repeat("x", 300):             strings.Repeat("x", 200) + "…",
	} {
		if got := OneLine(errors.New(text)); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestMergeKeepsWhatThisRunDidNotMeasure(t *testing.T) {
	piece := func(commit string, workloads ...string) *Result {
		r := &Result{Commit: commit, Subjects: []string{Ours}, Sizes: map[string]int64{commit: 1}}
		for _, w := range workloads {
			r.Find(Row{Workload: w, Title: w, Figure: Seconds}).Add(Ours, Sample{Value: float64(len(commit))}, nil)
		}
		return r
	}
	r, err := piece("new", "b", "c").With(piece("earlier", "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, row := range r.Rows {
		s, _ := row.Headline(Ours)
		got[row.Workload] = s.Median
	}
	if diff := cmp.Diff(map[string]float64{"a": 7, "b": 3, "c": 3}, got); diff != "" || r.Commits() != "new; earlier" || len(r.Sizes) != 2 {
		t.Errorf("commits %s, sizes %v\n%s", r.Commits(), r.Sizes, diff)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	var data bytes.Buffer
	want := result()
	if err := want.WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJSON(&data)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.0123: "0.012", 0.5: "0.50", 12.34: "12.3", 123.4: "123", 12345: "12,345", 1234567: "1,234,567", -1234: "-1,234"} {
		if got := Number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{5: "5.00 µs", 1404.6: "1,405 µs", 20e3: "20.0 ms", 2.5e6: "2.50 s"} {
		if got := Micros(v); got != want {
			t.Errorf("%v µs: got %s, want %s", v, got, want)
		}
	}
}

func TestComparison(t *testing.T) {
	r := &Result{Rounds: 3, Subjects: []string{Ours, "before", "other"}}
	row := r.Find(Row{Workload: "get", Title: "GET", Figure: CPUPerOp})
	for i, micros := range []float64{100, 200, 400} {
		sample := func(factor float64) Sample {
			return Sample{CPU: map[string]float64{"triune": micros * factor}, Memory: map[string]accounting.Memory{"triune": {Peak: 1000}}}
		}
		row.Add(Ours, sample(1), nil)
		row.Add("before", sample([]float64{1.1, 1.2, 1.3}[i]), nil)
	}
	var b strings.Builder
	if err := r.Comparison(&b, Ours); err != nil {
		t.Fatal(err)
	}
	want := "| GET | before | 200 µs | 240 µs | 1.200 (1.100–1.300) | 1.000 |\n"
	if _, got, _ := strings.Cut(b.String(), "---:|\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
