package storage

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"triune.dev/shared/storage/bytecache"
)

// caches shows what the caches hold, asked at each scrape. There is one series a
// resource, as in kube-apiserver's apiserver_storage_objects.
type caches struct {
	root  string // of all keys, with a slash at its end
	feeds func() []feed
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("triune_bytecache_"+name, help, labels, nil)
}

var (
	cachedObjects = describe("objects", "Objects whose stored bytes are held.", "resource")
	cachedBytes   = describe("stored_bytes", "Stored bytes that are held, with what belongs to each object.", "resource")
	plainBytes    = describe("plain_bytes", "Stored bytes that are held as they are and could be held compressed.", "resource")
	loggedChanges = describe("log_changes", "Changes that watches can resume from without history.", "resource")
	loggedBytes   = describe("log_bytes", "What only the log of changes holds.", "resource")
	keptBytes     = describe("kept_bytes", "At most what is held for the further pages of LISTs.", "resource")
	derivedBytes  = describe("derived_bytes", "Encodings made of stored bytes that are held.", "tier")
)

// Describe implements prometheus.Collector.
func (c caches) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cachedObjects, cachedBytes, plainBytes, loggedChanges, loggedBytes, keptBytes, derivedBytes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c caches) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), label)
	}
	for _, f := range c.feeds() {
		gauge(derivedBytes, f.share.Space.Budget().Used(), string(f.tier))
		f.share.Space.Each(func(cache *bytecache.Cache) {
			stats := cache.Stats()
			if !stats.Live {
				return // nobody reads it, and nothing is held
			}
			resource := strings.TrimSuffix(strings.TrimPrefix(cache.Prefix(), c.root), "/")
			gauge(cachedObjects, int64(stats.Objects), resource)
			gauge(cachedBytes, stats.Bytes, resource)
			gauge(plainBytes, stats.Plain, resource)
			gauge(loggedChanges, int64(stats.LogChanges), resource)
			gauge(loggedBytes, stats.LogBytes, resource)
			gauge(keptBytes, stats.PinnedBytes, resource)
		})
	}
}
