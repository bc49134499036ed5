package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/tests/cluster"
)

// fault is a fault of a cluster. It is over when strike returns: everything runs then,
// though perhaps without its data.
type fault struct {
	name   string
	strike func(context.Context, *nemesis) error
}

// nemesis injects faults into a cluster, one at a time.
type nemesis struct {
	*cluster.Cluster
	http *http.Client
	t    *testing.T
}

// faults returns the faults for the topology.
func (n *nemesis) faults() []fault {
	serving := n.ServingTiers()
	core := serving[0]
	if n.Config.Topology == cluster.Tiers {
		core = cluster.Core
	}
	all := []fault{
		{"the relay is killed", func(ctx context.Context, n *nemesis) error {
			relay, err := n.relay(ctx, core)
			if err != nil {
				return err
			}
			return n.kill(ctx, core, relay, time.Second)
		}},
		{"the relay stops for a second", func(ctx context.Context, n *nemesis) error {
			relay, err := n.relay(ctx, core)
			if err != nil {
				return err
			}
			return n.freeze(ctx, core, relay, time.Second)
		}},
		{"the relay stops until another is elected", func(ctx context.Context, n *nemesis) error {
			relay, err := n.relay(ctx, core)
			if err != nil {
				return err
			}
			return n.freeze(ctx, core, relay, 12*time.Second)
		}},
		{"another replica of core stops", func(ctx context.Context, n *nemesis) error {
			relay, err := n.relay(ctx, core)
			if err != nil {
				return err
			}
			return n.freeze(ctx, core, (relay+1)%n.count(core), 3*time.Second)
		}},
		{"etcd is killed", func(ctx context.Context, n *nemesis) error {
			return n.kill(ctx, cluster.Etcd, 0, 500*time.Millisecond)
		}},
		{"etcd stops", func(ctx context.Context, n *nemesis) error {
			return n.freeze(ctx, cluster.Etcd, 0, 2*time.Second)
		}},
	}
	if n.Config.Topology == cluster.Tiers {
		all = append(all, fault{"an aggregator is killed", func(ctx context.Context, n *nemesis) error {
			return n.kill(ctx, cluster.Aggregator, 0, 500*time.Millisecond)
		}})
	}
	if n.Process(cluster.NATS, 0) == nil {
		return all
	}
	return append(all,
		fault{"NATS is killed", func(ctx context.Context, n *nemesis) error {
			return n.kill(ctx, cluster.NATS, 0, time.Second)
		}},
		fault{"NATS is away for a while", func(ctx context.Context, n *nemesis) error {
			return n.kill(ctx, cluster.NATS, 0, 6*time.Second)
		}},
		fault{"NATS loses its files", func(ctx context.Context, n *nemesis) error {
			n.Kill(cluster.NATS, 0)
			if err := os.RemoveAll(n.NATSDir()); err != nil {
				return fmt.Errorf("lose the files of NATS: %w", err)
			}
			return n.StartReplica(ctx, cluster.NATS, 0)
		}},
		fault{"NATS stops for two seconds", func(ctx context.Context, n *nemesis) error {
			return n.freeze(ctx, cluster.NATS, 0, 2*time.Second)
		}},
		fault{"NATS stops until it is given up", func(ctx context.Context, n *nemesis) error {
			return n.freeze(ctx, cluster.NATS, 0, 6*time.Second)
		}},
		fault{"the streams are purged", func(ctx context.Context, n *nemesis) error {
			return n.purge(ctx)
		}},
	)
}

func (n *nemesis) count(tier cluster.Tier) int {
	i := 0
	for n.Process(tier, i) != nil {
		i++
	}
	return i
}

func (n *nemesis) kill(ctx context.Context, tier cluster.Tier, i int, away time.Duration) error {
	n.Kill(tier, i)
	pause(ctx, away)
	return n.StartReplica(ctx, tier, i)
}

func (n *nemesis) freeze(ctx context.Context, tier cluster.Tier, i int, d time.Duration) error {
	p := n.Process(tier, i)
	p.Pause()
	defer p.Resume()
	pause(ctx, d)
	return nil
}

// relay returns the replica that is the elected relay. If there is none, it returns an
// error or, without an event log, the first replica.
func (n *nemesis) relay(ctx context.Context, tier cluster.Tier) (int, error) {
	if n.Process(cluster.NATS, 0) == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		for i := range n.count(tier) {
			if v, err := metric(ctx, n.http, n.ReplicaURL(tier, i)+"/metrics", "triune_eventlog_relay_elected"); err == nil && v == 1 {
				return i, nil
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
	return 0, errors.New("no replica says that it is the relay")
}

// purge empties all streams through the API of JetStream.
func (n *nemesis) purge(ctx context.Context) error {
	conn, err := nats.Connect(n.ReplicaURL(cluster.NATS, 0))
	if err != nil {
		return fmt.Errorf("purge: connect to NATS: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	purged := 0
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("purge %s: %w", name, err)
		}
		if err := stream.Purge(ctx); err != nil {
			return fmt.Errorf("purge %s: %w", name, err)
		}
		purged++
	}
	if err := names.Err(); err != nil {
		return fmt.Errorf("purge: list streams: %w", err)
	}
	if purged == 0 {
		return errors.New("purge: there is no stream")
	}
	return nil
}

// metric returns the sum of all samples of one metric.
func metric(ctx context.Context, h *http.Client, url, name string) (float64, error) {
	page, err := metrics(ctx, h, url)
	if err != nil {
		return 0, err
	}
	samples, found := page[name]
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", url, name)
	}
	sum := 0.0
	for _, v := range samples {
		sum += v
	}
	return sum, nil
}

// metrics reads a page of metrics: the samples of each name.
func metrics(ctx context.Context, h *http.Client, url string) (map[string][]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %s: %s", url, resp.Status)
	}
	page := map[string][]float64{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		end := strings.IndexAny(line, " {")
		if end <= 0 || line[0] == '#' {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err != nil {
			return nil, fmt.Errorf("read metrics: %q: %w", line, err)
		}
		page[line[:end]] = append(page[line[:end]], v)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return page, nil
}
