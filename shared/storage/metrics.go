package storage

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"triune.dev/shared/storage/bytecache"
)

// caches collects the figures of the caches at each scrape. There is one series for each
// resource, as in kube-apiserver's apiserver_storage_objects. What a byte cache has in common
// with kube-apiserver's watch cache has its names.
type caches struct {
	root  string // prefix of all keys, with a trailing slash
	feeds func() []feed
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("triune_bytecache_"+name, help, labels, nil)
}

var (
	cachedObjects = describe("objects", "Cached objects.", "resource")
	cachedBytes   = describe("stored_bytes", "Memory of cached objects: their stored bytes and the overhead of each.", "resource")
	plainBytes    = describe("plain_bytes", "Cached stored bytes that are not compressed but could be.", "resource")
	loggedChanges = describe("log_changes", "Changes in memory, from which watches can resume without the event log.", "resource")
	loggedBytes   = describe("log_bytes", "Memory of the log of changes that is not shared with cached objects.", "resource")
	pinnedBytes   = describe("kept_bytes", "Upper bound of the memory of snapshots for further pages of LISTs.", "resource")
	derivedBytes  = describe("derived_bytes", "Cached encodings made of stored bytes.", "tier")
)

// describeUpstream describes a metric of kube-apiserver's watch cache
// (k8s.io/apiserver/pkg/storage/cacher/metrics).
func describeUpstream(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_"+name, help, append([]string{"group", "resource"}, labels...), nil)
}

var (
	receivedEvents   = describeUpstream("watch_cache_events_received_total", "Changes applied to the cache.")
	dispatchedEvents = describeUpstream("watch_cache_events_dispatched_total", "Changes offered to the watches of the cache.")
	initializations  = describeUpstream("watch_cache_initializations_total", "Times that the objects were read from etcd.")
	cacheVersion     = describeUpstream("watch_cache_resource_version", "Newest resource version of the cache, its 15 least significant digits.")
	consistentReads  = describeUpstream("watch_cache_consistent_read_total", "LISTs of the newest state.", "success", "fallback")
	readWait         = describeUpstream("watch_cache_read_wait_seconds", "Time that reads waited for the cache to have a resource version.")
	initialEvents    = describeUpstream("init_events_total", "Objects with which watches began.")
	cacheLists       = describeUpstream("cache_list_total", "LISTs answered from the cache.", "index")
	fetchedObjects   = describeUpstream("cache_list_fetched_objects_total", "Objects that LISTs looked at in the cache.", "index")
	returnedObjects  = describeUpstream("cache_list_returned_objects_total", "Objects that LISTs returned from the cache.")
)

// maxExactVersion keeps resource versions below 2^53, up to which every integer is a float64.
const maxExactVersion = 1_000_000_000_000_000

// Describe implements prometheus.Collector.
func (c caches) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cachedObjects, cachedBytes, plainBytes, loggedChanges, loggedBytes, pinnedBytes, derivedBytes,
		receivedEvents, dispatchedEvents, initializations, cacheVersion, consistentReads, readWait,
		initialEvents, cacheLists, fetchedObjects, returnedObjects} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c caches) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), label)
	}
	for _, f := range c.feeds() {
		gauge(derivedBytes, f.caching.Space.Budget().Used(), string(f.tier))
		f.caching.Space.Each(func(cache *bytecache.Cache) {
			stats := cache.Stats()
			if !stats.Live {
				return // an unread cache is empty
			}
			resource := strings.TrimSuffix(strings.TrimPrefix(cache.Prefix(), c.root), "/")
			gauge(cachedObjects, int64(stats.Objects), resource)
			gauge(cachedBytes, stats.Bytes, resource)
			gauge(plainBytes, stats.Plain, resource)
			gauge(loggedChanges, int64(stats.LogChanges), resource)
			gauge(loggedBytes, stats.LogBytes, resource)
			gauge(pinnedBytes, stats.PinnedBytes, resource)
			collectUpstream(ch, cache, stats)
		})
	}
}

func collectUpstream(ch chan<- prometheus.Metric, cache *bytecache.Cache, stats bytecache.Stats) {
	group, resource := cache.Resource()
	if resource == "" {
		return // nobody has said what its objects are
	}
	add := func(d *prometheus.Desc, kind prometheus.ValueType, value int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(value), append([]string{group, resource}, labels...)...)
	}
	add(receivedEvents, prometheus.CounterValue, stats.Changes)
	add(dispatchedEvents, prometheus.CounterValue, stats.Changes)
	add(initializations, prometheus.CounterValue, stats.Loads)
	add(cacheVersion, prometheus.GaugeValue, stats.Revision%maxExactVersion)
	counts := cache.Reads().Counts()
	add(initialEvents, prometheus.CounterValue, counts.InitialEvents)
	if counts.Consistent > 0 {
		add(consistentReads, prometheus.CounterValue, counts.Consistent, "true", "false")
	}
	if counts.Inconsistent > 0 {
		add(consistentReads, prometheus.CounterValue, counts.Inconsistent, "false", "true")
	}
	for index, lists := range counts.Lists {
		add(cacheLists, prometheus.CounterValue, lists.Lists, index)
		add(fetchedObjects, prometheus.CounterValue, lists.Fetched, index)
	}
	if len(counts.Lists) > 0 {
		add(returnedObjects, prometheus.CounterValue, counts.Returned)
	}
	buckets, total := map[float64]uint64{}, uint64(0)
	for i, bound := range bytecache.WaitBounds {
		total += counts.Waits.Buckets[i]
		buckets[bound] = total
	}
	ch <- prometheus.MustNewConstHistogram(readWait, counts.Waits.Count, counts.Waits.Seconds, buckets, group, resource)
}
