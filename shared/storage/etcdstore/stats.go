package etcdstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Stats implements storage.Interface: the number of objects, and their average
// stored size as far as reads have shown it.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	count, err := s.count(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	stats := storage.Stats{ObjectCount: count}
	if count > 0 && utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate) {
		stats.EstimatedAverageObjectSizeBytes = s.sizes.average()
	}
	return stats, nil
}

func (s *Store) count(ctx context.Context) (int64, error) {
	if keys := s.sizes.keysFunc(); keys != nil {
		all, err := keys(ctx)
		return int64(len(all)), err
	}
	prefix, err := s.keys.all()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	count, err := s.reader.Count(ctx, prefix)
	metrics.RecordEtcdRequest("listWithCount", s.resource, err, start)
	return count, err
}

// EnableResourceSizeEstimation implements storage.Interface. Sizes are always
// estimated; from now on objects are counted with keys instead of by etcd.
func (s *Store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	return s.sizes.enable(keys)
}

// sizeEstimate follows the average stored size of a resource's objects. A complete LIST
// replaces it, partial ones move it towards their average. That takes two numbers, while
// kube-apiserver stores the size of each key; the estimate is only used for the cost of LISTs
// and for a metric.
type sizeEstimate struct {
	mu    sync.Mutex
	bytes float64          // average, guarded by mu
	known float64          // objects the average stands for, guarded by mu
	keys  storage.KeysFunc // guarded by mu
}

func (e *sizeEstimate) enable(keys storage.KeysFunc) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keys != nil {
		return errors.New("resource size estimation is already enabled")
	}
	e.keys = keys
	return nil
}

func (e *sizeEstimate) keysFunc() storage.KeysFunc {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keys
}

func (e *sizeEstimate) average() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return int64(e.bytes)
}

// listed learns from the objects that a LIST has read.
func (e *sizeEstimate) listed(l *lister, recursive bool) {
	objects := int64(l.examined)
	if objects == 0 {
		return
	}
	whole := recursive && l.plan.start == "" && !l.more
	if all, err := l.store.keys.all(); err != nil || all != l.prefix {
		whole = false
	}
	e.observe(l.bytes, objects, whole)
}

// observe takes the total size of some objects, or of all of them.
func (e *sizeEstimate) observe(bytes, objects int64, whole bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := float64(bytes) / float64(objects)
	if whole || e.known == 0 {
		e.bytes, e.known = seen, float64(objects)
		return
	}
	weight := min(float64(objects)/e.known, 1)
	e.bytes += (seen - e.bytes) * weight
}
