package report

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Chart is an image of a result.
type Chart struct {
	Title, File string
	SVG         string
}

// The colours of subjects are visible on white and on black; text follows the reader's
// colour scheme.
var colours = map[string]string{
	Peer: "#8b949e", Floor: "#c69026", Ours: "#2f81f7", "tiers": "#8957e5", "tiers×2": "#db61a2",
	"triune/go": "#79c0ff", "tiers/go": "#a371f7",
}

const style = `<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600;font-size:14px}.m{fill:#59636e}.g{stroke:#d1d9e0}` +
	`@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.m{fill:#9198a1}.g{stroke:#3d444d}}</style>`

// Charts draws the charts for which the result has figures. prefix begins the names of
// their files.
func (r *Result) Charts(prefix string) []Chart {
	var charts []Chart
	add := func(file, title string, svg string) {
		if svg != "" {
			charts = append(charts, Chart{Title: title, File: prefix + file + ".svg", SVG: svg})
		}
	}
	rows := func(figures ...Figure) []*Row {
		var found []*Row
		for _, row := range r.Rows {
			_, ours := row.Headline(Ours)
			if row.Limit > 0 && ours && slices.Contains(figures, row.Figure) {
				found = append(found, row)
			}
		}
		return found
	}
	title := "Server CPU per operation (bars relative to the longest of each workload)"
	add("cpu", title, r.bars(title, rows(CPUPerOp)))
	title = "Memory"
	add("memory", title, r.bars(title, rows(Resident, Anonymous, Peak, Kilobytes)))
	title = "How costs grow"
	add("growth", title, growthChart(title, r.Curves()))
	return charts
}

// bars draws a bar for each subject in each row, relative to the longest of the row,
// because costs of different rows differ by a factor of ten thousand.
func (r *Result) bars(title string, rows []*Row) string {
	if len(rows) == 0 {
		return ""
	}
	const width, label, bar, line, gap = 900, 330, 430, 15, 9
	var b strings.Builder
	y := 44
	for _, row := range rows {
		longest := 0.0
		for _, subject := range r.Subjects {
			if s, ok := row.Headline(subject); ok {
				longest = max(longest, s.Median)
			}
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", label-8, y+11, html.EscapeString(name(row)))
		for _, subject := range r.Subjects {
			s, ok := row.Headline(subject)
			if !ok {
				continue
			}
			length := 0.0
			if longest > 0 {
				length = bar * math.Max(0, s.Median) / longest
			}
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`, label, y, math.Max(1, length), line-3, colour(subject))
			fmt.Fprintf(&b, `<text class="m" x="%.1f" y="%d">%s</text>`+"\n", label+math.Max(1, length)+6, y+10, html.EscapeString(unit(row.Figure, s.Median)))
			y += line
		}
		if row.Limit > 0 && longest > 0 && row.Limit <= longest {
			x := label + bar*row.Limit/longest
			fmt.Fprintf(&b, `<line class="g" x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke-dasharray="2 2"/>`+"\n", x, x, y-line, y)
		}
		y += gap
	}
	return frame(title, width, y+6, b.String(), r.Subjects)
}

func colour(subject string) string {
	if c, ok := colours[subject]; ok {
		return c
	}
	return "#3fb950"
}

// frame adds a title and a legend to a drawing.
func frame(title string, width, height int, body string, legend []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n%s\n", width, height, html.EscapeString(title), style)
	fmt.Fprintf(&b, `<text class="t" x="10" y="20">%s</text>`+"\n", html.EscapeString(title))
	x := 10
	for _, subject := range legend {
		fmt.Fprintf(&b, `<rect x="%d" y="28" width="10" height="10" rx="2" fill="%s"/><text class="m" x="%d" y="37">%s</text>`+"\n", x, colour(subject), x+14, html.EscapeString(subject))
		x += 30 + 7*len([]rune(subject))
	}
	b.WriteString(body + "</svg>\n")
	return b.String()
}

// growthChart draws every curve in a small chart of its workload, with logarithmic axes.
func growthChart(title string, curves []Curve) string {
	var titles, subjects []string
	for _, c := range curves {
		if !slices.Contains(titles, c.Title) {
			titles = append(titles, c.Title)
		}
		if !slices.Contains(subjects, c.Subject) {
			subjects = append(subjects, c.Subject)
		}
	}
	if len(titles) == 0 {
		return ""
	}
	const columns, width, height = 3, 290, 190
	var b strings.Builder
	for i, t := range titles {
		var mine []Curve
		for _, c := range curves {
			if c.Title == t {
				mine = append(mine, c)
			}
		}
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`, 10+i%columns*(width+10), 50+i/columns*(height+16))
		plot(&b, t, mine, width, height)
		b.WriteString("</g>\n")
	}
	rows := (len(titles) + columns - 1) / columns
	return frame(title, columns*(width+10)+10, 50+rows*(height+16), b.String(), subjects)
}

func plot(b *strings.Builder, title string, curves []Curve, width, height int) {
	const left, top, bottom = 54, 20, 20
	minX, maxX, minY, maxY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, c := range curves {
		for _, p := range c.Points {
			if p.Size > 0 && p.Cost > 0 {
				minX, maxX = math.Min(minX, p.Size), math.Max(maxX, p.Size)
				minY, maxY = math.Min(minY, p.Cost), math.Max(maxY, p.Cost)
			}
		}
	}
	fmt.Fprintf(b, `<text x="0" y="12">%s</text>`, html.EscapeString(title))
	if math.IsInf(minX, 0) {
		return
	}
	scale := func(v, low, high float64, from, to int) float64 {
		if high <= low {
			return float64(from+to) / 2
		}
		return float64(from) + math.Log(v/low)/math.Log(high/low)*float64(to-from)
	}
	x := func(v float64) float64 { return scale(v, minX, maxX, left, width-8) }
	y := func(v float64) float64 { return scale(v, minY, maxY, height-bottom, top) }
	fmt.Fprintf(b, `<path class="g" fill="none" d="M%d %dV%dH%d"/>`, left, top, height-bottom, width)
	f := curves[0].Figure
	for _, v := range []float64{minY, maxY} {
		fmt.Fprintf(b, `<text class="m" x="%d" y="%.1f" text-anchor="end">%s</text>`, left-4, y(v)+4, html.EscapeString(unit(f, v)))
	}
	fmt.Fprintf(b, `<text class="m" x="%d" y="%d">%s</text><text class="m" x="%d" y="%d" text-anchor="end">%s</text>`, left, height-4, Thousands(fmt.Sprintf("%.0f", minX)), width, height-4, Thousands(fmt.Sprintf("%.0f", maxX)))
	for _, c := range curves {
		var points []string
		for _, p := range c.Points {
			if p.Size > 0 && p.Cost > 0 {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.Size), y(p.Cost)))
			}
		}
		fmt.Fprintf(b, `<polyline fill="none" stroke-width="2" stroke="%s" points="%s"/>`, colour(c.Subject), strings.Join(points, " "))
	}
}
