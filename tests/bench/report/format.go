package report

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"triune.dev/tests/bench/stats"
)

// maxLine bounds the length of an error in a table.
const maxLine = 200

// local matches paths and addresses of the machine, which mean nothing elsewhere.
var local = regexp.MustCompile(`(/[\w.@+-]+){2,}/?|127\.0\.0\.1:\d+`)

// OneLine shortens an error for a table: its first line, without paths and ports.
func OneLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	line = local.ReplaceAllStringFunc(line, func(found string) string {
		// Paths of the API say what failed; other paths do not.
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

// name returns the name of a row with its phase.
func name(row *Row) string {
	if row.Phase == "" {
		return row.Title
	}
	return row.Title + ", " + row.Phase
}

// Number formats three significant digits without an exponent.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1e4:
		return Thousands(fmt.Sprintf("%.0f", v))
	case a >= 100:
		return Thousands(fmt.Sprintf("%.0f", v))
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// Thousands inserts a comma between groups of three digits.
func Thousands(digits string) string {
	sign := ""
	if rest, ok := strings.CutPrefix(digits, "-"); ok {
		sign, digits = "-", rest
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Micros formats microseconds in a suitable unit.
func Micros(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return Number(v/1e6) + " s"
	case a >= 1e4:
		return Number(v/1e3) + " ms"
	case a >= 1e3:
		return Thousands(fmt.Sprintf("%.0f", v)) + " µs"
	default:
		return Number(v) + " µs"
	}
}

// Size formats a number of bytes in decimal units.
func Size(v float64) string {
	switch {
	case v >= 1e9:
		return Number(v/1e9) + " GB"
	case v >= 1e6:
		return Number(v/1e6) + " MB"
	case v >= 1e3:
		return Number(v/1e3) + " kB"
	default:
		return Number(v) + " B"
	}
}

// unit formats a figure with its unit.
func unit(f Figure, v float64) string {
	switch f {
	case CPUPerOp:
		return Micros(v)
	case Resident, Anonymous, Peak:
		return Number(v) + " MB"
	case Seconds:
		return Number(v) + " s"
	case Percent, Kept:
		return Number(v) + " %"
	case Kilobytes:
		return Number(v) + " kB"
	case PerSecond:
		return Number(v) + "/s"
	default:
		return Number(v)
	}
}

// spread formats a median with the extremes, if there are several values.
func spread(f Figure, s stats.Spread) string {
	if s.N < 2 {
		return unit(f, s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", unit(f, s.Median), unit(f, s.Min), unit(f, s.Max))
}
