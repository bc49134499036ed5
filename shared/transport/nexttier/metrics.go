package nexttier

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The outcomes of a request, besides the class of its status code.
const (
	outcomeUnavailable = "unavailable"
	outcomeBroken      = "broken"
	outcomeDistrusted  = "distrusted"
	outcomeTimeout     = "timeout"
	outcomeCanceled    = "canceled"
	outcomeRefused     = "refused"
)

var classes = [...]string{"", "1xx", "2xx", "3xx", "4xx", "5xx"}

// metrics counts requests by kind and outcome. The name of the next tier is a constant label.
type metrics struct {
	byClass   [kinds][len(classes)]prometheus.Counter
	byOutcome [kinds]map[string]prometheus.Counter
	retried   [kinds]prometheus.Counter
	failures  prometheus.Counter
}

func newMetrics(p *Proxy) (*metrics, error) {
	tier := prometheus.Labels{"tier": p.config.Tier}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "triune_next_tier_requests_total", ConstLabels: tier,
		Help: "Requests forwarded to the next tier, by kind and by outcome: the class of the status code, or the reason why there is none.",
	}, []string{"kind", "outcome"})
	retries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "triune_next_tier_retries_total", ConstLabels: tier,
		Help: "Requests sent to the next tier again, because they were not processed or are safe to repeat.",
	}, []string{"kind"})
	m := &metrics{failures: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "triune_next_tier_replica_failures_total", ConstLabels: tier,
		Help: "Times that a replica of the next tier went down.",
	})}
	for k := range kinds {
		for i, class := range classes[1:] {
			m.byClass[k][i+1] = requests.WithLabelValues(k.String(), class)
		}
		m.byOutcome[k] = map[string]prometheus.Counter{}
		for _, outcome := range []string{outcomeUnavailable, outcomeBroken, outcomeDistrusted, outcomeTimeout, outcomeCanceled, outcomeRefused} {
			m.byOutcome[k][outcome] = requests.WithLabelValues(k.String(), outcome)
		}
		m.retried[k] = retries.WithLabelValues(k.String())
	}
	if p.config.Registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{requests, retries, m.failures, &stateCollector{proxy: p,
		replicas:    prometheus.NewDesc("triune_next_tier_replicas", "Replicas of the next tier, by condition.", []string{"condition"}, tier),
		inFlight:    prometheus.NewDesc("triune_next_tier_requests_in_flight", "Requests forwarded to the next tier and not yet answered, by kind.", []string{"kind"}, tier),
		connections: prometheus.NewDesc("triune_next_tier_connections", "HTTP/2 connections to the next tier, by kind of request.", []string{"kind"}, tier),
	}} {
		if err := p.config.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the %s tier: %w", p.config.Tier, err)
		}
	}
	return m, nil
}

func (m *metrics) answered(k kind, code int) {
	if class := code / 100; class > 0 && class < len(classes) {
		m.byClass[k][class].Inc()
	}
}

func (m *metrics) failed(k kind, req *http.Request, err error) {
	var unavailable *unavailableError
	var ours *apierrors.StatusError
	outcome := outcomeBroken
	switch {
	case errors.Is(err, errDistrusted):
		outcome = outcomeDistrusted
	case errors.Is(req.Context().Err(), context.DeadlineExceeded):
		outcome = outcomeTimeout
	case req.Context().Err() != nil:
		outcome = outcomeCanceled
	case errors.As(err, &unavailable):
		outcome = outcomeUnavailable
	case errors.As(err, &ours):
		outcome = outcomeRefused
	}
	m.byOutcome[k][outcome].Inc()
}

// stateCollector collects the current state of the replicas.
type stateCollector struct {
	proxy                           *Proxy
	replicas, inFlight, connections *prometheus.Desc
}

func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.replicas
	out <- c.inFlight
	out <- c.connections
}

func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	var byCondition [conditions]int
	var inFlight [kinds]int64
	var connections [2]int
	for _, r := range *c.proxy.replicas.Load() {
		byCondition[r.condition.Load()]++
		for k := range kinds {
			inFlight[k] += r.inFlight[k].Load()
		}
		for k, pool := range r.pools {
			connections[k] += pool.size()
		}
	}
	for i, n := range byCondition {
		out <- prometheus.MustNewConstMetric(c.replicas, prometheus.GaugeValue, float64(n), condition(i).String())
	}
	for k, n := range inFlight {
		out <- prometheus.MustNewConstMetric(c.inFlight, prometheus.GaugeValue, float64(n), kind(k).String())
	}
	for k, n := range connections {
		out <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(n), kind(k).String())
	}
}
