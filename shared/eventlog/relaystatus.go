package eventlog

import (
	"cmp"
	"slices"
	"time"
)

// RelayStatus is what a relay knows of itself.
type RelayStatus struct {
	// Elected says that this process publishes, Streams how that goes.
	Elected bool
	Streams []StreamStatus
	// Problem is why it cannot be elected, or cannot open any stream, and empty
	// where there is none.
	Problem string
}

// StreamStatus is what the elected relay knows of a stream.
type StreamStatus struct {
	Tier Tier
	// Usable says that it can be published to; Problem why it cannot, and Since
	// since when that is so.
	Usable  bool
	Problem string
	Since   time.Time
	// Replicas is how many servers should have the stream, and Missing how many of
	// them are away or behind.
	Replicas, Missing int
	History           History
}

// History is what a stream has of the past.
type History struct {
	// Age is that of the oldest message.
	Age time.Duration
	// Bytes are what the stream keeps, MaxBytes the most that it may.
	Bytes, MaxBytes int64
}

// Status returns the present state. It is safe for concurrent use.
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
	r.metrics.copies.Reset()
	r.metrics.historySeconds.Reset()
	r.metrics.bytes.Reset()
	r.metrics.maxBytes.Reset()
}

// setProblem notes why this process publishes nothing.
func (r *Relay) setProblem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.Problem = ""; err != nil {
		r.status.Problem = err.Error()
	}
}

// setStream changes what is known of a tier's stream.
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
	r.metrics.copies.WithLabelValues(string(tier)).Set(float64(s.Missing))
	r.metrics.historySeconds.WithLabelValues(string(tier)).Set(s.History.Age.Seconds())
	r.metrics.bytes.WithLabelValues(string(tier)).Set(float64(s.History.Bytes))
	r.metrics.maxBytes.WithLabelValues(string(tier)).Set(float64(s.History.MaxBytes))
}
