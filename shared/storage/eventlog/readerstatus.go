package eventlog

import "time"

// Source is where a reader gets its events from.
type Source string

const (
	SourceStream Source = "stream"
	SourceEtcd   Source = "etcd"
)

// Status describes the state of a reader.
type Status struct {
	// Source is the current source, in use since Since.
	Source Source
	Since  time.Time
	// Revision is the revision that the sink has reached, zero before the first.
	Revision int64
	// Lag is the number of revisions between Revision and the highest one that this reader
	// knows of. LagSeconds is the time since the reader last knew that nothing newer existed.
	Lag        int64
	LagSeconds float64
	// Gaps counts broken chains; Stalls counts silences of a stream while etcd went on; Refused
	// counts messages that no relay published; Resets counts calls of Sink.Reset after the
	// first.
	Gaps, Stalls, Refused, Resets int64
	// OldestHistory is the revision after which the stream holds every event, as of the last
	// read of its history. It is 0 if unknown.
	OldestHistory int64

	highest int64     // highest revision that the reader knows of
	freshAt time.Time // last time that Revision was known to be current
}

// HistoryDepth returns the number of revisions before Revision that the stream holds, or 0 if
// that is unknown.
func (s Status) HistoryDepth() int64 {
	if s.OldestHistory == 0 {
		return 0
	}
	return max(0, s.Revision-s.OldestHistory)
}

// Status returns the current status. It is safe for concurrent use and cheap enough for health
// checks.
func (r *Reader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Lag = max(0, s.highest-s.Revision)
	if !s.freshAt.IsZero() {
		s.LagSeconds = time.Since(s.freshAt).Seconds()
	}
	return s
}

// updateStatus applies change to the status.
func (r *Reader) updateStatus(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
}
