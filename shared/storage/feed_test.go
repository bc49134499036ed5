package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
)

// Every tier of a process has a feed of its stream; without streams there is one feed for all.
func TestFeedsOfTiers(t *testing.T) {
	etcd := clientv3.NewCtxClient(t.Context())
	routes := eventlog.NewRoutes("test", "/registry")
	keys := []string{
		"/registry/pods/", "/registry/apiregistration.k8s.io/apiservices/", "/registry/example.com/widgets/",
		"/registry/apiregistration.k8s.io/widgets/", // a CRD may choose that group
	}
	s := &Storage{log: EventLog{Cluster: "test"}}
	s.options.StorageConfig.Prefix = "/registry"
	alone := &cluster{client: etcd}
	if err := s.addFeeds(alone, true); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if got := alone.cachingFor(key, routes); got == nil || got != alone.feeds[0].caching {
			t.Errorf("%s without streams: %v", key, got)
		}
	}
	tiers := &cluster{}
	for _, tier := range eventlog.Tiers {
		tiers.feeds = append(tiers.feeds, feed{tier: tier, caching: &etcdstore.Caching{}})
	}
	for i, tier := range []eventlog.Tier{eventlog.Core, eventlog.Aggregator, eventlog.Extensions, eventlog.Extensions} {
		got := tiers.cachingFor(keys[i], routes)
		for _, f := range tiers.feeds {
			if (f.caching == got) != (f.tier == tier) {
				t.Errorf("%s: not the feed of %s", keys[i], tier)
			}
		}
	}
}

// Clusters that share an etcd elect relays of their own.
func TestRelaysOfSharedEtcd(t *testing.T) {
	seen := map[string]bool{}
	for _, cluster := range []string{"a", "b"} {
		for _, prefix := range []string{"/registry", "/other"} {
			seen[eventlog.NewRoutes(cluster, prefix).StatePrefix()] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("keys %v", seen)
	}
}

// The detail of the check reports for each stream whether it can be published to.
func TestDetailOfTheRelay(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tc := range []struct {
		status eventlog.RelayStatus
		want   string
	}{
		{eventlog.RelayStatus{}, "relay: not elected\n"},
		{eventlog.RelayStatus{Problem: "max_payload is too small"}, "relay: cannot publish: max_payload is too small\n"},
		{eventlog.RelayStatus{Elected: true, Streams: []eventlog.StreamStatus{
			{Tier: eventlog.Core, Usable: true, Since: since, Replicas: 3, Missing: 1, History: eventlog.History{Age: 12 * time.Minute, Bytes: 3 << 30, MaxBytes: 4 << 30}},
			{Tier: eventlog.Extensions, Since: since, Problem: "no leader"},
		}}, "relay: elected\nrelay of core: publishing since 2026-01-02T03:04:05Z, 1 of 3 replicas missing, history of 12m0s, 3072 of 4096 MiB\nrelay of extensions: cannot publish since 2026-01-02T03:04:05Z: no leader\n"},
	} {
		if got := relayDetail(tc.status); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

// An unread cache has no series.
func TestCacheMetrics(t *testing.T) {
	space := bytecache.New(bytecache.Config{})
	if _, err := space.Cache("/registry/pods/", bytecache.Options{}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(caches{root: "/registry/", feeds: func() []feed {
		return []feed{{tier: eventlog.Core, caching: &etcdstore.Caching{Space: space}}}
	}})
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 1 {
		t.Errorf("%d series, %v; want only the derived bytes", n, err)
	}
}

// A replica is not ready before etcd's first response.
func TestFeedsThatHaveNotBegun(t *testing.T) {
	s := &Storage{log: EventLog{Cluster: "test"}}
	s.options.StorageConfig.Prefix = "/registry"
	c := &cluster{client: clientv3.NewCtxClient(t.Context())}
	if err := s.addFeeds(c, true); err != nil {
		t.Fatal(err)
	}
	if err := (feedsCheck{c}).Check(nil); err == nil || !strings.Contains(err.Error(), "all tiers: has not begun") {
		t.Errorf("before etcd's first response: %v", err)
	}
	c.feeds[0].caching.Space.Reset(7)
	if err := (feedsCheck{c}).Check(nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	const want = "all tiers: from etcd since 0001-01-01T00:00:00Z, revision 0, lag 0 revisions and 0.0 seconds, 0 gaps, 0 stalls, 0 resets, history not known\n"
	if got := (feedsCheck{c}).Detail(); got != want {
		t.Errorf("detail %q, want %q", got, want)
	}
}

// While a large resource is read from etcd, the detail says how far it is.
func TestDetailOfALoad(t *testing.T) {
	atSecondPage, goOn := make(chan struct{}), make(chan struct{})
	space := bytecache.New(bytecache.Config{Origin: origin(func(r kv.Range) (kv.Page, error) {
		page := kv.Page{Revision: 7, Count: 3}
		if r.Revision != 0 {
			close(atSecondPage)
			<-goOn
			page.Count = 1
		}
		for i := range min(page.Count, 2) {
			page.KVs = append(page.KVs, &kv.KeyValue{Key: []byte(fmt.Sprint(r.Start, i)), Value: []byte("{}"), ModRevision: 7})
		}
		return page, nil
	})})
	space.Reset(7)
	cache, err := space.Cache("/registry/pods/", bytecache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := feed{tier: eventlog.Core, caching: &etcdstore.Caching{Space: space}}
	if got := f.loads(); got != "" {
		t.Errorf("before: %q", got)
	}
	loaded := make(chan error, 1)
	go func() { loaded <- cache.Load(t.Context()) }()
	<-atSecondPage
	if got, want := f.loads(), "core: 2 of 3 objects read from etcd so far\n"; got != want {
		t.Errorf("during the load: %q, want %q", got, want)
	}
	close(goOn)
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if got := f.loads(); got != "" {
		t.Errorf("afterwards: %q", got)
	}
}

// origin is a bytecache.Origin that answers with a function.
type origin func(r kv.Range) (kv.Page, error)

func (o origin) List(_ context.Context, r kv.Range) (kv.Page, error) { return o(r) }
