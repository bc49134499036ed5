package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
)

// EventLog says how a Storage learns what changes in its etcd.
type EventLog struct {
	// Conn reaches the NATS that carries the log. Nil means that there is none: each
	// process then watches etcd itself.
	Conn *nats.Conn
	// CloseConn makes Storage.Close close Conn.
	CloseConn bool
	// Cluster is what the names of the streams begin with.
	Cluster string
	// Tiers are those whose objects this Storage keeps. Each has its stream.
	Tiers []eventlog.Tier
	// Relay are the tiers whose streams this process may be elected to write.
	Relay  []eventlog.Tier
	Stream eventlog.StreamOptions
	// Identity names this process in the election.
	Identity string
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// PlainBytes is bytecache's, for each tier.
	PlainBytes int64
	// LogBytes is bytecache's, for each tier.
	LogBytes int64
}

// feed is a part of an etcd's keys, cached, and the log that it is kept up to date
// by.
type feed struct {
	// tier is whose keys they are; empty means all.
	tier   eventlog.Tier
	reader *eventlog.Reader
	share  *etcdstore.Caching
}

// addFeeds gives a cluster its caches. Only the main etcd has its changes carried by
// NATS: those of another one, which --etcd-servers-overrides names for a resource or
// two, each process watches itself.
func (s *Storage) addFeeds(c *cluster, main bool) error {
	log := s.log
	if !main {
		log.Conn, log.Registerer = nil, nil
	}
	routes := eventlog.NewRoutes(log.Cluster, s.options.StorageConfig.Prefix)
	tiers := log.Tiers
	if log.Conn == nil && len(tiers) != 1 {
		tiers = []eventlog.Tier{""} // one watch for all of them
	}
	client := kv.New(c.client)
	prober := readindex.New(client, routes.Prefix())
	for _, tier := range tiers {
		reader, err := eventlog.NewReader(eventlog.ReaderConfig{
			Etcd: c.client, Conn: log.Conn, Routes: routes, Tier: tier, StatePrefix: routes.StatePrefix(), Registerer: log.Registerer,
		})
		if err != nil {
			return fmt.Errorf("event log: %w", err)
		}
		space := bytecache.New(bytecache.Config{Origin: client, Feed: reader, PlainBytes: log.PlainBytes, LogBytes: log.LogBytes})
		c.feeds = append(c.feeds, feed{tier: tier, reader: reader, share: &etcdstore.Caching{Space: space, Prober: prober}})
	}
	if log.Conn == nil || len(log.Relay) == 0 {
		return nil
	}
	relay, err := eventlog.NewRelay(eventlog.RelayConfig{
		Etcd: c.client, Conn: log.Conn, Routes: routes, Tiers: log.Relay, Stream: log.Stream,
		Identity: log.Identity, StatePrefix: routes.StatePrefix(), Registerer: log.Registerer,
	})
	if err != nil {
		return fmt.Errorf("event log: %w", err)
	}
	c.relay = relay
	return nil
}

// cachingOf returns what the resource whose keys begin with prefix reads from.
func (c *cluster) cachingOf(prefix string, routes *eventlog.Routes) *etcdstore.Caching {
	for _, f := range c.feeds {
		if f.tier == "" || f.tier == routes.Route(prefix).Tier {
			return f.share
		}
	}
	return nil
}

// follow keeps the caches up to date and small, and publishes for others if elected, until
// ctx ends.
func (c *cluster) follow(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range c.feeds {
		group.Go(func() error { return f.reader.Run(ctx, sink{f.share.Space}) })
		group.Go(func() error { return f.share.Space.RunCompressor(ctx) })
	}
	if c.relay != nil {
		group.Go(func() error { return c.relay.Run(ctx) })
	}
	return group.Wait()
}

// feedsCheck is the health check event-log: every feed has begun. One that has fallen
// behind is no reason to send requests elsewhere, for reads that must be new wait for
// it or ask etcd; the detail and the metrics tell. It is an apiserver.DetailedChecker.
type feedsCheck struct{ *cluster }

// Name implements healthz.HealthChecker.
func (feedsCheck) Name() string { return "event-log" }

// Detail is a line for each feed: its source, how far it is behind, what went wrong
// since the process began, and how many revisions back the log is known to reach. A
// process that may be elected to publish adds a line for each stream that it
// publishes to, or why it cannot be elected.
func (c feedsCheck) Detail() string {
	var b strings.Builder
	for _, f := range c.feeds {
		s := f.reader.Status()
		history := "not known"
		if s.OldestHistory > 0 {
			history = fmt.Sprintf("%d revisions", s.HistoryDepth())
		}
		fmt.Fprintf(&b, "%s: from %s since %s, revision %d, lag %d revisions and %.1f seconds, %d gaps, %d stalls, %d resets, history %s\n",
			cmp.Or(string(f.tier), everyTier), s.Source, s.Since.UTC().Format(time.RFC3339), s.Revision, s.Lag, s.LagSeconds, s.Gaps, s.Stalls, s.Resets, history)
	}
	if c.relay != nil {
		b.WriteString(relayDetail(c.relay.Status()))
	}
	return b.String()
}

func relayDetail(s eventlog.RelayStatus) string {
	if s.Problem != "" {
		return fmt.Sprintf("relay: cannot publish: %s\n", s.Problem)
	}
	if !s.Elected {
		return "relay: not elected\n"
	}
	var b strings.Builder
	b.WriteString("relay: elected\n")
	for _, stream := range s.Streams {
		fmt.Fprintf(&b, "relay of %s: ", stream.Tier)
		if stream.Usable {
			h := stream.History
			fmt.Fprintf(&b, "publishing since %s, %d of %d replicas missing, history of %s, %d of %d MiB\n",
				stream.Since.UTC().Format(time.RFC3339), stream.Missing, stream.Replicas, h.Age.Round(time.Second), h.Bytes>>20, h.MaxBytes>>20)
		} else {
			fmt.Fprintf(&b, "cannot publish since %s: %s\n", stream.Since.UTC().Format(time.RFC3339), stream.Problem)
		}
	}
	return b.String()
}

// everyTier names the feed that is nobody's in particular.
const everyTier = "all tiers"

// Check implements healthz.HealthChecker.
func (c feedsCheck) Check(*http.Request) error {
	var errs []error
	for _, f := range c.feeds {
		if f.share.Space.Revision() == 0 {
			errs = append(errs, fmt.Errorf("%s: has not begun; etcd has not answered yet", cmp.Or(string(f.tier), everyTier)))
		}
	}
	return errors.Join(errs...)
}

// sink is a space as the end of a log. The log does not say whether a reset is a gap,
// which who has seen everything before it survives, or another etcd; so all watches
// end with it.
type sink struct{ *bytecache.Space }

// Reset implements eventlog.Sink.
func (s sink) Reset(revision int64) { s.Replace(revision) }
