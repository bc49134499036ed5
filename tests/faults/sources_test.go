package faults

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/cluster"
)

// source is the source of a process's events.
type source struct {
	process                             string
	fromStream, readers                 int
	gaps, stalls, refused, resets, lags float64
}

func (s source) String() string {
	return fmt.Sprintf("%s: %d of %d readers on the stream, %.0f gaps, %.0f stalls, %.0f refused, %.0f resets, %.0f revisions behind",
		s.process, s.fromStream, s.readers, s.gaps, s.stalls, s.refused, s.resets, s.lags)
}

// sources reads the sources of every process.
func sources(ctx context.Context, c *cluster.Cluster, h *http.Client) ([]source, error) {
	var all []source
	for _, tier := range c.ServingTiers() {
		for i := 0; c.Process(tier, i) != nil; i++ {
			s := source{process: c.Process(tier, i).Name}
			page, err := metrics(ctx, h, c.ReplicaURL(tier, i)+"/metrics")
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.process, err)
			}
			for _, v := range page["triune_eventlog_from_stream"] {
				s.readers++
				s.fromStream += int(v)
			}
			sum := func(name string) (total float64) {
				for _, v := range page["triune_eventlog_"+name] {
					total += v
				}
				return total
			}
			s.gaps, s.stalls, s.refused = sum("gaps_total"), sum("stalls_total"), sum("refused_total")
			s.resets, s.lags = sum("resets_total"), sum("lag_revisions")
			all = append(all, s)
		}
	}
	return all, nil
}

// awaitStream waits until every reader gets its events from the stream. Otherwise it
// reports an error, but the test continues, because clients must see correct results in any
// case.
func awaitStream(t *testing.T, c *cluster.Cluster, h *http.Client) {
	t.Helper()
	if c.Process(cluster.NATS, 0) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	begin := time.Now()
	var lines []string // the last result
	for {
		all, err := sources(ctx, c, h)
		waits := err != nil
		if err == nil {
			lines = []string{fmt.Sprintf("after %.1f s", time.Since(begin).Seconds())}
		}
		for _, s := range all { // none after an error
			waits = waits || s.readers == 0 || s.fromStream < s.readers
			lines = append(lines, s.String())
		}
		if !waits {
			t.Log(strings.Join(lines, "\n"))
			return
		}
		if ctx.Err() != nil {
			t.Errorf("not every reader follows the stream (%v): %s", err, strings.Join(lines, "\n"))
			return
		}
		pause(ctx, 200*time.Millisecond)
	}
}
