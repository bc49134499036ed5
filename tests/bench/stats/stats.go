// Package stats has the arithmetic of the benchmarks: medians and spreads of runs,
// percentiles of latencies, and the exponent with which a cost grows. It uses no clock and
// no I/O.
package stats

import (
	"cmp"
	"errors"
	"math"
	"slices"
)

// Spread is a figure over several runs.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// SpreadOf summarizes the runs of one figure. The median of an even number of runs is the
// mean of the two in the middle. Without runs the result is zero, including N.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{
		Median: (sorted[(n-1)/2] + sorted[n/2]) / 2,
		Min:    sorted[0],
		Max:    sorted[n-1],
		N:      n,
	}
}

// Percentile returns the smallest value that at least the share p (0 < p ≤ 1) of the values
// does not exceed (nearest rank). values must be sorted; without values it returns zero.
func Percentile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Point is the cost at one size.
type Point struct {
	Size float64 `json:"size"`
	Cost float64 `json:"cost"`
}

// ErrNoFit is returned if no power law fits the points: there are fewer than two sizes, or
// a size or cost is not positive.
var ErrNoFit = errors.New("no exponent fits these points")

// Exponent fits cost = a·size^k by least squares on logarithms and returns k.
func Exponent(points []Point) (float64, error) {
	var n, sx, sy, sxx, sxy float64
	for _, p := range points {
		if !(p.Size > 0 && p.Cost > 0) || math.IsInf(p.Size, 0) || math.IsInf(p.Cost, 0) {
			return 0, ErrNoFit
		}
		x, y := math.Log(p.Size), math.Log(p.Cost)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	det := n*sxx - sx*sx
	if n < 2 || det < 1e-9 {
		return 0, ErrNoFit
	}
	return (n*sxy - sx*sy) / det, nil
}
