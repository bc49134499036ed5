package report

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"triune.dev/tests/bench/stats"
)

// maxLine bounds an error in a table.
const maxLine = 200

// local are paths and addresses of the machine that measured: they mean nothing
// elsewhere.
var local = regexp.MustCompile(`(/[\w.@+-]+){2,}/?|127\.0\.0\.1:\d+`)

// OneLine makes an error fit into a table: its first line, without paths and ports.
func OneLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	line = local.ReplaceAllStringFunc(line, func(found string) string {
		// API paths say what failed; others only where.
		if strings.HasPrefix(found, "/api") || strings.HasPrefix(found, "/apis") {
			return found
		}
		return "…"
	})
	line = strings.ReplaceAll(line, "|", `\|`)
	if runes := []rune(line); len(runes) > maxLine {
		line = string(runes[:maxLine]) + "…"
	}
	return line
}

// name of a row, with its phase.
func name(row *Row) string {
	if row.Phase == "" {
		return row.Title
	}
	return row.Title + ", " + row.Phase
}

// number prints three significant digits without an exponent.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1e4:
		return thousands(fmt.Sprintf("%.0f", v))
	case a >= 100:
		return thousands(fmt.Sprintf("%.0f", v))
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// thousands puts a comma between groups of three digits.
func thousands(digits string) string {
	sign := ""
	if rest, ok := strings.CutPrefix(digits, "-"); ok {
		sign, digits = "-", rest
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// micros prints microseconds in the unit that fits.
func micros(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return number(v/1e6) + " s"
	case a >= 1e4:
		return number(v/1e3) + " ms"
	case a >= 1e3:
		return thousands(fmt.Sprintf("%.0f", v)) + " µs"
	default:
		return number(v) + " µs"
	}
}

// size prints a number of bytes in decimal units.
func size(v float64) string {
	switch {
	case v >= 1e9:
		return number(v/1e9) + " GB"
	case v >= 1e6:
		return number(v/1e6) + " MB"
	case v >= 1e3:
		return number(v/1e3) + " kB"
	default:
		return number(v) + " B"
	}
}

// unit prints a figure with its unit.
func unit(f Figure, v float64) string {
	switch f {
	case CPUPerOp:
		return micros(v)
	case Resident, Anonymous, Peak:
		return number(v) + " MB"
	case Seconds:
		return number(v) + " s"
	case Percent:
		return number(v) + " %"
	case Kilobytes:
		return number(v) + " kB"
	case PerSecond:
		return number(v) + "/s"
	default:
		return number(v)
	}
}

// spread prints a median with the extremes, which a single run has not.
func spread(f Figure, s stats.Spread) string {
	if s.N < 2 {
		return unit(f, s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", unit(f, s.Median), unit(f, s.Min), unit(f, s.Max))
}
