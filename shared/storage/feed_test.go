package storage

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/etcdstore"
	"triune.dev/shared/eventlog"
)

// Every tier of a process reads what its own stream feeds; without streams there is
// one feed for all.
func TestFeedsOfTiers(t *testing.T) {
	etcd := clientv3.NewCtxClient(t.Context())
	routes := eventlog.NewRoutes("test", "/registry")
	keys := []string{"/registry/pods/", "/registry/apiregistration.k8s.io/apiservices/", "/registry/example.com/widgets/"}
	s := &Storage{log: EventLog{Cluster: "test"}}
	s.options.StorageConfig.Prefix = "/registry"
	alone := &cluster{client: etcd}
	if err := s.addFeeds(alone, true); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if got := alone.cachingOf(key, routes); got == nil || got != alone.feeds[0].share {
			t.Errorf("%s without streams: %v", key, got)
		}
	}
	tiers := &cluster{}
	for _, tier := range eventlog.Tiers {
		tiers.feeds = append(tiers.feeds, feed{tier: tier, share: &etcdstore.Caching{}})
	}
	for i, tier := range []eventlog.Tier{eventlog.Core, eventlog.Aggregator, eventlog.Extensions} {
		got := tiers.cachingOf(keys[i], routes)
		for _, f := range tiers.feeds {
			if (f.share == got) != (f.tier == tier) {
				t.Errorf("%s: not the feed of %s", keys[i], tier)
			}
		}
	}
}

// Clusters that share an etcd elect relays of their own.
func TestRelaysOfSharedEtcd(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range []EventLog{{Cluster: "a"}, {Cluster: "b"}} {
		for _, prefix := range []string{"/registry", "/other"} {
			seen[l.keys(eventlog.NewRoutes(l.Cluster, prefix))] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("keys %v", seen)
	}
}

// What nobody reads has no series.
func TestCacheMetrics(t *testing.T) {
	space := bytecache.New(bytecache.Config{})
	if _, err := space.Cache("/registry/pods/", bytecache.Options{}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(caches{root: "/registry/", feeds: func() []feed {
		return []feed{{tier: eventlog.Core, share: &etcdstore.Caching{Space: space}}}
	}})
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 1 {
		t.Errorf("%d series, %v; want only the derived bytes", n, err)
	}
}

// A replica that has heard nothing of etcd yet is not ready.
func TestFeedsThatHaveNotBegun(t *testing.T) {
	s := &Storage{log: EventLog{Cluster: "test"}}
	s.options.StorageConfig.Prefix = "/registry"
	c := &cluster{client: clientv3.NewCtxClient(t.Context())}
	if err := s.addFeeds(c, true); err != nil {
		t.Fatal(err)
	}
	if err := feedsCheck(c.feeds).Check(nil); err == nil || !strings.Contains(err.Error(), "all tiers: has not begun") {
		t.Errorf("before the first word: %v", err)
	}
	c.feeds[0].share.Space.Reset(7)
	if err := feedsCheck(c.feeds).Check(nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	const want = "all tiers: from etcd since 0001-01-01T00:00:00Z, revision 0, lag 0 revisions and 0.0 seconds, 0 gaps, 0 stalls, 0 resets, history not known\n"
	if got := feedsCheck(c.feeds).Detail(); got != want {
		t.Errorf("detail %q, want %q", got, want)
	}
}
