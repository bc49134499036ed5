package fairness

import (
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
)

// countingGauge is a gauge of inner whose value is also kept in sum.
type countingGauge struct {
	metrics.RatioedGauge
	set *queueSet
	sum *int // guarded by the set's mu
}

// Add implements metrics.Gauge.
func (g *countingGauge) Add(n float64) {
	g.set.mu.Lock()
	*g.sum += int(n)
	g.set.mu.Unlock()
	g.RatioedGauge.Add(n)
}

// demandGauge is inner's gauge of seats that are occupied or waited for. It also shows the
// seats of direct requests.
type demandGauge struct {
	metrics.Gauge
	set *queueSet
}

// Set implements metrics.Gauge.
func (g *demandGauge) Set(seats float64) {
	g.set.mu.Lock()
	defer g.set.mu.Unlock()
	g.set.demand = seats
	g.Gauge.Set(seats + float64(g.set.directSeats))
}
