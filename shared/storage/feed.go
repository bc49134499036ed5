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

// EventLog configures how a Storage learns of changes in its etcd.
type EventLog struct {
	// Conn is a connection to the NATS with the log. If it is nil, the process watches
	// etcd itself.
	Conn *nats.Conn
	// CloseConn makes Storage.Close close Conn.
	CloseConn bool
	// Cluster is the prefix of the names of the streams.
	Cluster string
	// Tiers are those whose objects this Storage stores. Each has a stream.
	Tiers []eventlog.Tier
	// Relay are the tiers whose streams this process may be elected to write.
	Relay  []eventlog.Tier
	Stream eventlog.StreamOptions
	// Identity names this process in the election.
	Identity string
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// PlainBytes is that of bytecache.Config, for each tier.
	PlainBytes int64
	// LogBytes is that of bytecache.Config, for each tier.
	LogBytes int64
}

// feed is the cache of a part of an etcd's keys, with the reader that updates it.
type feed struct {
	// tier is the tier of the keys; empty means all tiers.
	tier    eventlog.Tier
	reader  *eventlog.Reader
	caching *etcdstore.Caching
}

// addFeeds makes the caches of a cluster. The event log has only the changes of the main
// etcd. Each process watches the etcds of --etcd-servers-overrides itself, which have few
// resources.
func (s *Storage) addFeeds(c *cluster, main bool) error {
	log := s.log
	if !main {
		log.Conn, log.Registerer = nil, nil
	}
	routes := eventlog.NewRoutes(log.Cluster, s.options.StorageConfig.Prefix)
	tiers := log.Tiers
	if log.Conn == nil && len(tiers) != 1 {
		tiers = []eventlog.Tier{""} // one watch for all tiers
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
		c.feeds = append(c.feeds, feed{tier: tier, reader: reader, caching: &etcdstore.Caching{Space: space, Prober: prober}})
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

// cachingFor returns the cache of the resource whose keys begin with prefix, or nil.
func (c *cluster) cachingFor(prefix string, routes *eventlog.Routes) *etcdstore.Caching {
	for _, f := range c.feeds {
		if f.tier == "" || f.tier == routes.Route(prefix).Tier {
			return f.caching
		}
	}
	return nil
}

// runFeeds updates and compresses the caches, and runs the relay if there is one, until ctx
// ends.
func (c *cluster) runFeeds(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range c.feeds {
		group.Go(func() error { return f.reader.Run(ctx, sink{f.caching.Space}) })
		group.Go(func() error { return f.caching.Space.RunCompressor(ctx) })
	}
	if c.relay != nil {
		group.Go(func() error { return c.relay.Run(ctx) })
	}
	return group.Wait()
}

// feedsCheck is the health check event-log, which succeeds when all feeds have begun. It
// does not fail for a feed that lags, since consistent reads then wait or read from etcd;
// the detail and the metrics show the lag. It implements apiserver.DetailedChecker.
type feedsCheck struct{ *cluster }

// Name implements healthz.HealthChecker.
func (feedsCheck) Name() string { return "event-log" }

// Detail returns a line for each feed: its source, its lag, its failures since the process
// started, and the depth of its history; and another one while objects are read from etcd. A
// process with a relay adds a line for each stream
// that it publishes to, or the reason why it cannot publish.
func (c feedsCheck) Detail() string {
	var b strings.Builder
	for _, f := range c.feeds {
		s := f.reader.Status()
		history := "not known"
		if s.OldestHistory > 0 {
			history = fmt.Sprintf("%d revisions", s.HistoryDepth())
		}
		fmt.Fprintf(&b, "%s: from %s since %s, revision %d, lag %d revisions and %.1f seconds, %d gaps, %d stalls, %d resets, history %s\n",
			f.name(), s.Source, s.Since.UTC().Format(time.RFC3339), s.Revision, s.Lag, s.LagSeconds, s.Gaps, s.Stalls, s.Resets, history)
		b.WriteString(f.loads())
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

// name returns the tier of the feed for people.
func (f feed) name() string { return cmp.Or(string(f.tier), "all tiers") }

// loads returns how far the reading of resources from etcd is, or "" if none is being read.
func (f feed) loads() string {
	var read, total int64
	f.caching.Space.Each(func(cache *bytecache.Cache) {
		stats := cache.Stats()
		read, total = read+stats.Reading, total+stats.Total
	})
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d objects read from etcd so far\n", f.name(), read, total)
}

// Check implements healthz.HealthChecker.
func (c feedsCheck) Check(*http.Request) error {
	var errs []error
	for _, f := range c.feeds {
		if f.caching.Space.Revision() == 0 {
			errs = append(errs, fmt.Errorf("%s: has not begun; etcd has not answered yet", f.name()))
		}
	}
	return errors.Join(errs...)
}

// sink makes a Space an eventlog.Sink. A reset may be due to a gap or to another etcd, which
// the log does not distinguish, so it ends all watches.
type sink struct{ *bytecache.Space }

// Reset implements eventlog.Sink.
func (s sink) Reset(revision int64) { s.Replace(revision) }
