// Package report holds the results of the benchmarks and turns them into JSON, a Markdown
// page and SVG charts. Its output depends only on its input: the same result gives the same
// bytes.
package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/bench/stats"
)

// Result is the result of a run of the benchmarks.
type Result struct {
	Machine  accounting.Machine `json:"machine"`
	Versions map[string]string  `json:"versions"`
	Commit   string             `json:"commit"`
	// Command is the command that reproduces the result.
	Command string    `json:"command"`
	Date    time.Time `json:"date"`
	Rounds  int       `json:"rounds"`
	// Quick runs are shorter and leave out slow workloads.
	Quick bool `json:"quick"`
	// Scale multiplies the sizes of the large workloads.
	Scale float64 `json:"scale"`
	// Subjects are the names of the subjects, in the order of their columns.
	Subjects []string `json:"subjects"`
	Rows     []*Row   `json:"rows"`
	// Sizes are the sizes of response bodies by workload, which the floor uses, too.
	Sizes map[string]int64 `json:"sizes,omitempty"`
}

// Row is one phase of one workload, for all subjects.
type Row struct {
	Workload string `json:"workload"`
	Title    string `json:"title"`
	Group    string `json:"group"`
	// Phase is cold, warm, updates, a size, or empty.
	Phase string `json:"phase,omitempty"`
	// Figure is the figure that stands for the row, and Limit the limit for Triune, in that
	// figure's unit; 0 is no limit.
	Figure Figure  `json:"figure"`
	Limit  float64 `json:"limit,omitempty"`
	// Size is set if a cost is measured at several sizes.
	Size float64 `json:"size,omitempty"`
	// Commit is the commit of the measurement, if it differs from the result's: see With.
	Commit string           `json:"commit,omitempty"`
	Cells  map[string]*Cell `json:"cells"`
}

// Cell has the samples of a row for one subject, one per round or, for first calls, per
// start, or the errors in their place.
type Cell struct {
	Samples []Sample `json:"samples,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// Sample is the measurement of one run of a workload. Unused fields are zero.
type Sample struct {
	Ops  int     `json:"ops,omitempty"`
	Rate float64 `json:"rate,omitempty"` // operations per second
	// P50 and P99 are latencies in milliseconds.
	P50 float64 `json:"p50,omitempty"`
	P99 float64 `json:"p99,omitempty"`
	// CPU is the CPU time of each server process per operation, in microseconds, and Client
	// that of the load generator.
	CPU    map[string]float64 `json:"cpu,omitempty"`
	Client float64            `json:"client,omitempty"`
	// Wire is the number of bytes on the connections per operation, Body that of bodies.
	Wire   float64                      `json:"wire,omitempty"`
	Body   float64                      `json:"body,omitempty"`
	Memory map[string]accounting.Memory `json:"memory,omitempty"`
	// Value is the row's figure if it is none of the above.
	Value float64 `json:"value,omitempty"`
	// Notes are additional figures by name.
	Notes map[string]float64 `json:"notes,omitempty"`
}

// Figure names the figure of a sample that stands for its row.
type Figure string

// The figures.
const (
	CPUPerOp  Figure = "CPU per operation" // µs
	Resident  Figure = "resident memory"   // MB
	Anonymous Figure = "anonymous memory"  // MB
	Peak      Figure = "peak memory"       // MB
	Seconds   Figure = "seconds"
	Percent   Figure = "percent of a core"
	Kilobytes Figure = "kB each"
	PerSecond Figure = "operations a second"
	Ratio     Figure = "ratio"
	Kept      Figure = "percent kept" // of the undisturbed rate
)

// HigherIsBetter reports whether larger figures are better.
func (f Figure) HigherIsBetter() bool { return f == PerSecond || f == Kept }

// Reached reports whether a figure is within the limit of the row.
func (row *Row) Reached(figure float64) bool {
	if row.Figure.HigherIsBetter() {
		return figure >= row.Limit
	}
	return figure <= row.Limit
}

// Total returns a sample's CPU time per operation over all server processes, in µs.
func (s Sample) Total() float64 {
	var sum float64
	for _, v := range s.CPU {
		sum += v
	}
	return sum
}

// AllMemory returns the sum over the server processes.
func (s Sample) AllMemory() accounting.Memory {
	var sum accounting.Memory
	for _, m := range s.Memory {
		sum = sum.Plus(m)
	}
	return sum
}

// Figure returns a figure of a sample, in the unit of f.
func (s Sample) Figure(f Figure) float64 {
	switch f {
	case CPUPerOp:
		return s.Total()
	case Resident:
		return float64(s.AllMemory().Resident) / 1e6
	case Anonymous:
		return float64(s.AllMemory().Anonymous) / 1e6
	case Peak:
		return float64(s.AllMemory().Peak) / 1e6
	default:
		return s.Value
	}
}

// Spread returns the spread of a figure over rounds and starts. ok is false if there is
// none to publish: the subject did not run the workload, or one of its runs failed.
func (row *Row) Spread(subject string, figure func(Sample) float64) (spread stats.Spread, ok bool) {
	cell := row.Cells[subject]
	if cell == nil || cell.Error != "" || len(cell.Samples) == 0 {
		return stats.Spread{}, false
	}
	values := make([]float64, 0, len(cell.Samples))
	for _, s := range cell.Samples {
		values = append(values, figure(s))
	}
	return stats.SpreadOf(values), true
}

// Headline returns the spread of the figure that stands for the row.
func (row *Row) Headline(subject string) (stats.Spread, bool) {
	return row.Spread(subject, func(s Sample) float64 { return s.Figure(row.Figure) })
}

// Find returns the row of a workload and phase, and adds it if it is new.
func (r *Result) Find(row Row) *Row {
	i := slices.IndexFunc(r.Rows, func(have *Row) bool {
		return have.Workload == row.Workload && have.Phase == row.Phase
	})
	if i >= 0 {
		return r.Rows[i]
	}
	row.Cells = map[string]*Cell{}
	r.Rows = append(r.Rows, &row)
	return &row
}

// Add records a run or its error. After an error a cell has no samples, neither earlier nor
// later ones: no figure is published for work that failed.
func (row *Row) Add(subject string, s Sample, err error) {
	cell := row.Cells[subject]
	if cell == nil {
		cell = &Cell{}
		row.Cells[subject] = cell
	}
	switch {
	case cell.Error != "":
	case err != nil:
		*cell = Cell{Error: OneLine(err)}
	default:
		cell.Samples = append(cell.Samples, s)
	}
}

// Fail records an error in every row of a workload. A workload that failed before any of
// its rows was known gets a row.
func (r *Result) Fail(row Row, subject string, err error) {
	found := false
	for _, have := range r.Rows {
		if have.Workload == row.Workload {
			have.Add(subject, Sample{}, err)
			found = true
		}
	}
	if !found {
		r.Find(row).Add(subject, Sample{}, err)
	}
}

// With returns a copy that also has the rows of an earlier result that this one lacks,
// because a run may be done in parts. Earlier may be nil.
func (r *Result) With(earlier *Result) (*Result, error) {
	var text bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		return nil, err
	}
	out, err := ReadJSON(&text)
	if err != nil || earlier == nil {
		return out, err
	}
	out.add(earlier)
	return out, nil
}

func (r *Result) add(earlier *Result) {
	for _, row := range earlier.Rows {
		if have := r.Find(*row); len(have.Cells) == 0 {
			have.Cells = row.Cells
			have.Commit = cmp.Or(row.Commit, earlier.Commit)
		}
	}
	for _, subject := range earlier.Subjects {
		if !slices.Contains(r.Subjects, subject) {
			r.Subjects = append(r.Subjects, subject)
		}
	}
	if r.Sizes == nil {
		r.Sizes = map[string]int64{}
	}
	for name, size := range earlier.Sizes {
		if _, ok := r.Sizes[name]; !ok {
			r.Sizes[name] = size
		}
	}
}

// CommitOf returns the commit at which a row was measured.
func (r *Result) CommitOf(row *Row) string { return cmp.Or(row.Commit, r.Commit) }

// Commits returns the commits at which the rows were measured, the result's own first.
func (r *Result) Commits() string {
	commits := []string{r.Commit}
	for _, row := range r.Rows {
		if commit := r.CommitOf(row); !slices.Contains(commits, commit) {
			commits = append(commits, commit)
		}
	}
	return strings.Join(commits, "; ")
}

// Errors lists the failures, one per line.
func (r *Result) Errors() []string {
	var lines []string
	for _, row := range r.Rows {
		for _, subject := range r.Subjects {
			if cell := row.Cells[subject]; cell != nil && cell.Error != "" {
				lines = append(lines, fmt.Sprintf("%s, %s: %s", subject, name(row), cell.Error))
			}
		}
	}
	return lines
}

// WriteJSON writes the result for [ReadJSON].
func (r *Result) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write benchmark result: %w", err)
	}
	return nil
}

// ReadJSON reads a result.
func ReadJSON(from io.Reader) (*Result, error) {
	var r Result
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		return nil, fmt.Errorf("read benchmark result: %w", err)
	}
	return &r, nil
}
