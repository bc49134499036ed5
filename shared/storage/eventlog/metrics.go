package eventlog

import "github.com/prometheus/client_golang/prometheus"

// relayMetrics are the metrics of a relay.
type relayMetrics struct {
	elected  prometheus.Gauge
	restarts prometheus.Counter
	messages *prometheus.CounterVec
	usable   *prometheus.GaugeVec
	failures *prometheus.CounterVec
	replaced *prometheus.CounterVec
	missing  *prometheus.GaugeVec

	historySeconds, bytes, maxBytes *prometheus.GaugeVec
}

func newRelayMetrics(reg prometheus.Registerer) *relayMetrics {
	m := &relayMetrics{
		elected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "triune_eventlog_relay_elected", Help: "1 while this process publishes the event log.",
		}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "triune_eventlog_relay_restarts_total", Help: "Terms of the relay that ended with a failure.",
		}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triune_eventlog_relay_messages_total", Help: "Messages sent, by tier of the stream and type.",
		}, []string{"tier", "type"}),
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_usable", Help: "1 while the relay can publish to the stream of a tier, 0 while it cannot. Only the elected relay reports it.",
		}, []string{"tier"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triune_eventlog_stream_failures_total", Help: "Failures to publish to a stream or to open it.",
		}, []string{"tier"}),
		replaced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triune_eventlog_streams_replaced_total", Help: "Streams that were deleted and recreated, by reason: unusable, configuration, unfinished, history.",
		}, []string{"tier", "reason"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_replicas_missing", Help: "Replicas of the stream that are offline or behind. Only the elected relay reports it.",
		}, []string{"tier"}),
		historySeconds: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_history_seconds", Help: "Age of the oldest stored message of the stream. Only the elected relay reports it.",
		}, []string{"tier"}),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_bytes", Help: "Size of the stored messages of the stream. Only the elected relay reports it.",
		}, []string{"tier"}),
		maxBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_max_bytes", Help: "Maximum size of the stored messages of the stream. Only the elected relay reports it.",
		}, []string{"tier"}),
	}
	if reg != nil {
		reg.MustRegister(m.elected, m.restarts, m.messages, m.usable, m.failures, m.replaced, m.missing, m.historySeconds, m.bytes, m.maxBytes)
	}
	return m
}

func (m *relayMetrics) published(tier Tier, msg *message) {
	kind := "event"
	switch msg.Type {
	case typeProgress:
		kind = "progress"
	case typeReset:
		kind = "reset"
	}
	m.messages.WithLabelValues(string(tier), kind).Inc()
}

// readerMetrics are the metrics of a reader, besides those derived from its status.
type readerMetrics struct {
	events prometheus.Counter
}

func newReaderMetrics(reg prometheus.Registerer, tier string, status func() Status) *readerMetrics {
	labels := prometheus.Labels{"tier": tier}
	m := &readerMetrics{events: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "triune_eventlog_events_total", Help: "Events passed to the sink.", ConstLabels: labels,
	})}
	if reg == nil {
		return m
	}
	reg.MustRegister(m.events)
	gauge := func(name, help string, value func(Status) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "triune_eventlog_" + name, Help: help, ConstLabels: labels,
		}, func() float64 { return value(status()) }))
	}
	counter := func(name, help string, value func(Status) int64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "triune_eventlog_" + name, Help: help, ConstLabels: labels,
		}, func() float64 { return float64(value(status())) }))
	}
	gauge("from_stream", "1 while events come through NATS, 0 while etcd is watched directly.", func(s Status) float64 {
		if s.Source == SourceStream {
			return 1
		}
		return 0
	})
	gauge("revision", "Revision that the sink has reached.", func(s Status) float64 { return float64(s.Revision) })
	gauge("lag_revisions", "Revisions between the sink and the highest known revision.", func(s Status) float64 { return float64(s.Lag) })
	gauge("lag_seconds", "Time since the sink was last known to be current.", func(s Status) float64 { return s.LagSeconds })
	gauge("oldest_history_revision", "Revision after which the stream has every event, 0 if unknown.",
		func(s Status) float64 { return float64(s.OldestHistory) })
	gauge("history_revisions", "Revisions before the current one that the stream has, 0 if unknown.",
		func(s Status) float64 { return float64(s.HistoryDepth()) })
	counter("gaps_total", "Broken chains found in the stream.", func(s Status) int64 { return s.Gaps })
	counter("stalls_total", "Silences of the stream while etcd went on.", func(s Status) int64 { return s.Stalls })
	counter("refused_total", "Messages on the stream that no relay published.", func(s Status) int64 { return s.Refused })
	counter("resets_total", "Resets of the sink after the first.", func(s Status) int64 { return s.Resets })
	return m
}
