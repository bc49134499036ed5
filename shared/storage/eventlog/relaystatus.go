package eventlog

import (
	"cmp"
	"slices"
	"time"
)

// RelayStatus describes the state of a relay.
type RelayStatus struct {
	// Elected reports whether this process publishes; Streams then describes its streams.
	Elected bool
	Streams []StreamStatus
	// Problem says why this process cannot be elected or cannot open any stream. It is empty if
	// there is no problem.
	Problem string
}

// StreamStatus describes a stream as the elected relay sees it.
type StreamStatus struct {
	Tier Tier
	// Usable reports whether the relay can publish to the stream, and Since since when that has
	// been so. Problem says why it is not usable.
	Usable  bool
	Problem string
	Since   time.Time
	// Replicas is the number of servers that should have the stream, and Missing the number of
	// them that are offline or behind.
	Replicas, Missing int
	History           History
}

// History describes the messages that a stream stores.
type History struct {
	// Age is the age of the oldest message.
	Age time.Duration
	// Bytes is the size of the stored messages, and MaxBytes the limit of that size.
	Bytes, MaxBytes int64
}

// Status returns the current status. It is safe for concurrent use.
func (r *Relay) Status() RelayStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Streams = slices.Clone(s.Streams)
	return s
}

func (r *Relay) setElected(elected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Elected, r.status.Streams = elected, nil
	value := 0.0
	if elected {
		value, r.status.Problem = 1, ""
	}
	r.metrics.elected.Set(value)
	r.metrics.usable.Reset()
	r.metrics.missing.Reset()
	r.metrics.historySeconds.Reset()
	r.metrics.bytes.Reset()
	r.metrics.maxBytes.Reset()
}

// setProblem records why this process publishes nothing; nil clears it.
func (r *Relay) setProblem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.Problem = ""; err != nil {
		r.status.Problem = err.Error()
	}
}

// setStream applies change to the status of a tier's stream.
func (r *Relay) setStream(tier Tier, change func(*StreamStatus)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := slices.BinarySearchFunc(r.status.Streams, tier, func(s StreamStatus, t Tier) int { return cmp.Compare(s.Tier, t) })
	if !ok {
		r.status.Streams = slices.Insert(slices.Clone(r.status.Streams), i, StreamStatus{Tier: tier, Since: time.Now()})
	}
	s := &r.status.Streams[i]
	change(s)
	usable := 0.0
	if s.Usable {
		usable = 1
	}
	r.metrics.usable.WithLabelValues(string(tier)).Set(usable)
	r.metrics.missing.WithLabelValues(string(tier)).Set(float64(s.Missing))
	r.metrics.historySeconds.WithLabelValues(string(tier)).Set(s.History.Age.Seconds())
	r.metrics.bytes.WithLabelValues(string(tier)).Set(float64(s.History.Bytes))
	r.metrics.maxBytes.WithLabelValues(string(tier)).Set(float64(s.History.MaxBytes))
}
