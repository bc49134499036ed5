package eventlog

import "github.com/prometheus/client_golang/prometheus"

// relayMetrics are what a relay counts.
type relayMetrics struct {
	elected  prometheus.Gauge
	terms    prometheus.Counter
	messages *prometheus.CounterVec
	usable   *prometheus.GaugeVec
	failures *prometheus.CounterVec
	replaced *prometheus.CounterVec
	copies   *prometheus.GaugeVec

	historySeconds, bytes, maxBytes *prometheus.GaugeVec
}

func newRelayMetrics(reg prometheus.Registerer) *relayMetrics {
	m := &relayMetrics{
		elected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "triune_eventlog_relay_elected", Help: "1 while this process publishes the event log.",
		}),
		terms: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "triune_eventlog_relay_restarts_total", Help: "How often the relay stopped after a failure and began anew.",
		}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triune_eventlog_relay_messages_total", Help: "Messages sent, by the tier whose stream they went to and by type.",
		}, []string{"tier", "type"}),
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_usable", Help: "1 while the stream of a tier can be published to, 0 while it cannot. Only the elected relay says so.",
		}, []string{"tier"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triune_eventlog_stream_failures_total", Help: "How often publishing to a stream, or opening it, failed.",
		}, []string{"tier"}),
		replaced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triune_eventlog_streams_replaced_total", Help: "Streams that were deleted and made anew, by the reason: unusable, configuration, unfinished, history.",
		}, []string{"tier", "reason"}),
		copies: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_replicas_missing", Help: "Replicas of the stream that are away or behind. Only the elected relay says so.",
		}, []string{"tier"}),
		historySeconds: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_history_seconds", Help: "Age of the oldest message that the stream keeps. Only the elected relay says so.",
		}, []string{"tier"}),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_bytes", Help: "Bytes of messages that the stream keeps. Only the elected relay says so.",
		}, []string{"tier"}),
		maxBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "triune_eventlog_stream_max_bytes", Help: "Bytes of messages that the stream may keep. Only the elected relay says so.",
		}, []string{"tier"}),
	}
	if reg != nil {
		reg.MustRegister(m.elected, m.terms, m.messages, m.usable, m.failures, m.replaced, m.copies, m.historySeconds, m.bytes, m.maxBytes)
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

// readerMetrics are what a reader counts, beside its status.
type readerMetrics struct {
	events prometheus.Counter
}

func newReaderMetrics(reg prometheus.Registerer, tier string, status func() Status) *readerMetrics {
	labels := prometheus.Labels{"tier": tier}
	m := &readerMetrics{events: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "triune_eventlog_events_total", Help: "Events handed on.", ConstLabels: labels,
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
	gauge("revision", "Revision up to which everything was handed on.", func(s Status) float64 { return float64(s.Revision) })
	gauge("lag_revisions", "How far behind the highest known revision.", func(s Status) float64 { return float64(s.Lag) })
	gauge("lag_seconds", "Time since nothing newer was known.", func(s Status) float64 { return s.LagSeconds })
	gauge("oldest_history_revision", "Revision after which the stream still has everything, 0 if not known.",
		func(s Status) float64 { return float64(s.OldestHistory) })
	gauge("history_revisions", "How many revisions before the last one the stream tells, 0 if not known.",
		func(s Status) float64 { return float64(s.HistoryDepth()) })
	counter("gaps_total", "Broken chains found in the stream.", func(s Status) int64 { return s.Gaps })
	counter("stalls_total", "Silences of the stream that etcd was ahead of.", func(s Status) int64 { return s.Stalls })
	counter("refused_total", "Messages on the stream that no relay has written.", func(s Status) int64 { return s.Refused })
	counter("resets_total", "Times that the feed went on after a gap.", func(s Status) int64 { return s.Resets })
	return m
}
