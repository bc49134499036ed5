package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"triune.dev/tests/bench/stats"
)

// Comparison writes a table that compares every other subject with base: the medians of
// each row, and the median and the quartiles of the ratios of the rounds. The samples of a
// round were taken one after the other, so a ratio is less affected by how busy the machine
// was than the medians are.
func (r *Result) Comparison(w io.Writer, base string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| row | build | %s | build | ratio (quartiles of %d rounds) | peak resident, ratio |\n|---|---|---:|---:|---:|---:|\n", base, r.Rounds)
	for _, row := range r.Rows {
		before, ok := row.Headline(base)
		if !ok {
			continue
		}
		for _, subject := range r.Subjects {
			after, ok := row.Headline(subject)
			if subject == base || !ok {
				continue
			}
			figure := row.ratios(subject, base, func(s Sample) float64 { return s.Figure(row.Figure) })
			peak := row.ratios(subject, base, func(s Sample) float64 { return s.Figure(Peak) })
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s (%s–%s) | %s |\n", name(row), subject,
				unit(row.Figure, before.Median), unit(row.Figure, after.Median), ratio(figure, 0.5), ratio(figure, 0.25), ratio(figure, 0.75), ratio(peak, 0.5))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write comparison: %w", err)
	}
	return nil
}

// ratios returns the sorted ratios of a figure of two subjects, one for each round that both
// have.
func (row *Row) ratios(subject, base string, figure func(Sample) float64) []float64 {
	own, others := row.Cells[subject].Samples, row.Cells[base].Samples
	var all []float64
	for i := range min(len(own), len(others)) {
		if of := figure(others[i]); of != 0 {
			all = append(all, figure(own[i])/of)
		}
	}
	slices.Sort(all)
	return all
}

func ratio(sorted []float64, share float64) string {
	if len(sorted) == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f", stats.Percentile(sorted, share))
}
