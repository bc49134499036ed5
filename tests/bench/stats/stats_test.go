package stats

import (
	"errors"
	"math"
	"testing"
)

func TestSpreadOf(t *testing.T) {
	for name, test := range map[string]struct {
		values []float64
		want   Spread
	}{
		"none": {nil, Spread{}},
		"one":  {[]float64{3}, Spread{3, 3, 3, 1}},
		"odd":  {[]float64{9, 1, 2}, Spread{2, 1, 9, 3}},
		"even": {[]float64{4, 1, 2, 100}, Spread{3, 1, 100, 4}},
	} {
		if got := SpreadOf(test.values); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestSpreadOfLeavesItsInputAlone(t *testing.T) {
	values := []float64{3, 1, 2}
	SpreadOf(values)
	if values[0] != 3 || values[2] != 2 {
		t.Errorf("the input was sorted: %v", values)
	}
}

func TestPercentileIsNearestRank(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, test := range []struct {
		values []int
		p      float64
		want   int
	}{
		{nil, 0.5, 0},
		{[]int{7}, 0.99, 7},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{[]int{1, 2, 3}, 0.5, 2},
	} {
		if got := Percentile(test.values, test.p); got != test.want {
			t.Errorf("p%v of %d values: got %d, want %d", test.p, len(test.values), got, test.want)
		}
	}
}

func TestExponent(t *testing.T) {
	law := func(k float64) []Point {
		var points []Point
		for _, size := range []float64{1, 4, 16, 64} {
			points = append(points, Point{size, 5 * math.Pow(size, k)})
		}
		return points
	}
	for _, k := range []float64{0, 0.5, 1, 2} {
		got, err := Exponent(law(k))
		if err != nil || math.Abs(got-k) > 1e-9 {
			t.Errorf("cost = 5·n^%v: got %v, %v", k, got, err)
		}
	}
	for name, points := range map[string][]Point{
		"none":      nil,
		"one":       {{4, 2}},
		"one size":  {{4, 2}, {4, 3}},
		"zero cost": {{1, 0}, {2, 1}},
		"no number": {{1, math.NaN()}, {2, 1}},
	} {
		if _, err := Exponent(points); !errors.Is(err, ErrNoFit) {
			t.Errorf("%s: got %v, want ErrNoFit", name, err)
		}
	}
}
