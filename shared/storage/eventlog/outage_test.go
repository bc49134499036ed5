package eventlog

import (
	"errors"
	"testing"
	"time"
)

// A stream that stays unusable is recreated less and less often, and never if the cause lies
// outside it.
func TestLongOutagesRecreateTheStream(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const patience = 10 * time.Second
	own := errors.New("no leader")
	for _, tc := range []struct {
		name   string
		outage outage
		after  time.Duration
		want   bool
	}{
		{"none", outage{}, time.Hour, false},
		{"for a moment", outage{}.with(own, start), patience - 1, false},
		{"for long", outage{}.with(own, start), patience, true},
		{"for long, with another error now", outage{}.with(own, start).with(errAckTimeout, start.Add(patience-1)), patience, true},
		{"of the connection", outage{}.with(errConnectionLost, start), time.Hour, false},
		{"of the connection until now", outage{}.with(errConnectionLost, start).with(own, start.Add(time.Minute)), time.Minute + patience - 1, false},
		{"of its own again since", outage{}.with(errConnectionLost, start).with(own, start.Add(time.Minute)), time.Minute + patience, true},
		{"recreated in vain", outage{since: start, err: own, recreations: 3}, 8*patience - 1, false},
		{"and again", outage{since: start, err: own, recreations: 3}, 8 * patience, true},
	} {
		if got := tc.outage.shouldRecreate(patience, start.Add(tc.after)); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
