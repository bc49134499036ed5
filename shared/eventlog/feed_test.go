package eventlog

import (
	"errors"
	"testing"
	"time"
)

// A stream that stays unusable is made anew less and less often, and one that others
// are to blame for never.
func TestTroubleThatLasts(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const patience = 10 * time.Second
	own := errors.New("no leader")
	for _, tc := range []struct {
		name    string
		trouble trouble
		after   time.Duration
		want    bool
	}{
		{"none", trouble{}, time.Hour, false},
		{"for a moment", trouble{}.started(own, start), patience - 1, false},
		{"for long", trouble{}.started(own, start), patience, true},
		{"for long, with another error now", trouble{}.started(own, start).started(errAckTimeout, start.Add(patience-1)), patience, true},
		{"of the connection", trouble{}.started(errConnectionLost, start), time.Hour, false},
		{"of the connection until now", trouble{}.started(errConnectionLost, start).started(own, start.Add(time.Minute)), time.Minute + patience - 1, false},
		{"of its own again since", trouble{}.started(errConnectionLost, start).started(own, start.Add(time.Minute)), time.Minute + patience, true},
		{"made anew without avail", trouble{since: start, err: own, remade: 3}, 8*patience - 1, false},
		{"and again", trouble{since: start, err: own, remade: 3}, 8 * patience, true},
	} {
		if got := tc.trouble.lasting(patience, start.Add(tc.after)); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
