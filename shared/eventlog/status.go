package eventlog

import "time"

// Source is where a reader has its events from.
type Source string

const (
	SourceStream Source = "stream"
	SourceEtcd   Source = "etcd"
)

// Status is what a reader knows of itself.
type Status struct {
	// Source is in use now, Since when it is.
	Source Source
	Since  time.Time
	// Revision is the last that the sink has, zero before the first.
	Revision int64
	// Lag is by how many revisions it is behind the highest one that this
	// reader has heard of, and LagSeconds how long ago it was level with it, or
	// was last told that there is nothing newer.
	Lag        int64
	LagSeconds float64
	// Gaps counts broken chains, Stalls silences of a stream that etcd was
	// ahead of, Refused messages that were not a relay's, and Resets calls of
	// Sink.Reset beyond the first.
	Gaps, Stalls, Refused, Resets int64
	// OldestHistory is the revision after which the stream tells everything, as
	// far as the last look into its history has found; 0 means not known.
	OldestHistory int64

	heard   int64     // highest revision
	freshAt time.Time // last time that Revision was told to be the present
}

// HistoryDepth is how many revisions before the last one the stream tells; 0 where
// that is not known.
func (s Status) HistoryDepth() int64 {
	if s.OldestHistory == 0 {
		return 0
	}
	return max(0, s.Revision-s.OldestHistory)
}

// Status returns the present state. It is safe for concurrent use and cheap
// enough for health checks.
func (r *Reader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Lag = max(0, s.heard-s.Revision)
	if !s.freshAt.IsZero() {
		s.LagSeconds = time.Since(s.freshAt).Seconds()
	}
	return s
}

// note changes the status.
func (r *Reader) note(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
}
