package storage

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"triune.dev/shared/storage/bytecache"
)

// caches collects the sizes of the caches at each scrape. There is one series for each
// resource, as in kube-apiserver's apiserver_storage_objects.
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

// Describe implements prometheus.Collector.
func (c caches) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cachedObjects, cachedBytes, plainBytes, loggedChanges, loggedBytes, pinnedBytes, derivedBytes} {
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
		})
	}
}
