package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"triune.dev/tests/bench/report"
)

//go:embed scaling.md.tmpl
var scalingTemplate string

// ScalingPage returns docs/scaling.md with the figures of a result. It returns an error if
// the result lacks one.
func ScalingPage(result *report.Result) ([]byte, error) {
	f := &figures{Result: result}
	page, err := template.New("scaling.md").Funcs(template.FuncMap{
		"cpu":     f.cpu,
		"value":   f.value,
		"note":    f.note,
		"peak":    f.peak,
		"commits": func() string { return strings.Join(f.commits, "; ") },
		"add": func(sum float64, more ...float64) float64 {
			for _, v := range more {
				sum += v
			}
			return sum
		},
		"mul":    func(a, b float64) float64 { return a * b },
		"div":    func(a, b float64) float64 { return a / b },
		"micros": report.Micros,
		"number": report.Number,
		"size":   report.Size,
		"round":  func(v float64) string { return report.Thousands(strconv.Itoa(int(v) / 100 * 100)) },
	}).Parse(scalingTemplate)
	if err != nil {
		return nil, fmt.Errorf("page about scaling: %w", err)
	}
	var text bytes.Buffer
	for range 2 { // the commits of the figures are known after the first pass
		text.Reset()
		if err := page.Execute(&text, result); err != nil {
			return nil, fmt.Errorf("page about scaling: %w", err)
		}
	}
	return text.Bytes(), nil
}

// WriteScaling replaces the page.
func WriteScaling(page string, result *report.Result) error {
	text, err := ScalingPage(result)
	if err != nil {
		return err
	}
	return os.WriteFile(page, text, 0o644)
}

// figures looks up figures of a result.
type figures struct {
	*report.Result
	commits []string // of the figures found so far
}

func (f *figures) sample(subject, workload, phase string) (report.Sample, *report.Row, error) {
	for _, row := range f.Rows {
		if row.Workload != workload || row.Phase != phase {
			continue
		}
		if cell := row.Cells[subject]; cell != nil && cell.Error == "" && len(cell.Samples) > 0 {
			if commit := f.CommitOf(row); !slices.Contains(f.commits, commit) {
				f.commits = append(f.commits, commit)
			}
			return cell.Samples[0], row, nil
		}
	}
	return report.Sample{}, nil, fmt.Errorf("no figure of %s in %q, %q", subject, workload, phase)
}

// cpu returns the cost of an operation for one process of a subject, in µs.
func (f *figures) cpu(subject, process, workload, phase string) (float64, error) {
	s, _, err := f.sample(subject, workload, phase)
	if err == nil && s.CPU[process] == 0 {
		err = fmt.Errorf("no processor time of %s of %s in %q", process, subject, workload)
	}
	return s.CPU[process], err
}

// value returns the figure that stands for a row, the median of its rounds.
func (f *figures) value(subject, workload, phase string) (float64, error) {
	_, row, err := f.sample(subject, workload, phase)
	if err != nil {
		return 0, err
	}
	spread, _ := row.Headline(subject)
	return spread.Median, nil
}

func (f *figures) note(subject, workload, note string) (float64, error) {
	s, _, err := f.sample(subject, workload, "")
	if _, ok := s.Notes[note]; err == nil && !ok {
		err = fmt.Errorf("no %q of %s in %q", note, subject, workload)
	}
	return s.Notes[note], err
}

// peak returns the peak memory of a process, in bytes.
func (f *figures) peak(subject, process, workload string) (float64, error) {
	s, _, err := f.sample(subject, workload, "")
	if err == nil && s.Memory[process].Peak == 0 {
		err = fmt.Errorf("no memory of %s of %s in %q", process, subject, workload)
	}
	return float64(s.Memory[process].Peak), err
}
