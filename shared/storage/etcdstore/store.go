package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/keywatch"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
)

// Reader reads keys. *kv.Client implements it.
type Reader interface {
	Get(ctx context.Context, key string, o kv.ReadOptions) (kv.Item, error)
	List(ctx context.Context, r kv.Range) (kv.Page, error)
	Count(ctx context.Context, prefix string) (int64, error)
	Revision(ctx context.Context, key string) (int64, error)
}

// Writer writes keys, each only at an expected revision.
type Writer interface {
	Put(ctx context.Context, p kv.Put) (kv.Written, error)
	Delete(ctx context.Context, key string, expected int64) (kv.Written, error)
	Grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error)
}

// CompactionSource knows the compacted revision of an etcd.
type CompactionSource interface {
	// CompactRevision is the newest compacted revision known, 0 if none is.
	CompactRevision() int64
}

// Config describes the storage of one resource.
type Config struct {
	// Client is the etcd cluster. Required.
	Client *kv.Client
	// Codec encodes into the storage version and decodes into the memory
	// version. Required.
	Codec runtime.Codec
	// Transformer encrypts at rest; nil stores plain values and refuses encrypted ones.
	Transformer value.Transformer
	// NewFunc makes an empty object, for bookmarks.
	NewFunc func() runtime.Object
	// Prefix is the cluster's key prefix (--etcd-prefix), "/registry" by
	// convention.
	Prefix string
	// ResourcePrefix is the resource's below it, beginning with a slash.
	ResourcePrefix string
	// GroupResource labels metrics and errors.
	GroupResource schema.GroupResource
	// LeaseReuse is how long a lease is shared by objects that expire about
	// then (--lease-reuse-duration-seconds); at most a twentieth of their time
	// to live. 0 means that each object gets its own.
	LeaseReuse time.Duration
	// LeaseObjects bounds the objects of one lease; 0 means 1,000.
	LeaseObjects int64
	// Compaction, if set, answers CompactRevision.
	Compaction CompactionSource
	// Cache answers reads and watches, and gives updates the object to begin with.
	// CacheOptions are the options it was made with. Prober must be set with it. Without a
	// cache reads go to etcd, and a watch is an error.
	Cache *bytecache.Cache
	// Prober asks etcd how new a read of the cache has to be.
	Prober *readindex.Prober
	// Uncached makes the Store answer like a kube-apiserver without a watch cache for
	// this resource; see the package comment.
	Uncached bool
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
}

// Store is storage.Interface for the objects of one resource.
type Store struct {
	reader Reader
	writer Writer

	keys        keySpace
	codec       runtime.Codec
	transformer value.Transformer
	versioner   storage.APIObjectVersioner
	newFunc     func() runtime.Object
	resource    schema.GroupResource
	leases      *leaseSharer
	compaction  CompactionSource
	cache       *bytecache.Cache  // nil: everything comes from etcd
	prober      *readindex.Prober // nil without cache
	watches     *keywatch.Source  // nil without cache
	uncached    bool
	sizes       sizeEstimate
	clock       clock.WithTicker

	// salvage: unreadable objects are reported as such and may be deleted
	// (feature gate AllowUnsafeMalformedObjectDeletion).
	reportCorrupt bool
	// freshTimeout is how long a read waits for a revision yet to come.
	freshTimeout time.Duration
}

var _ storage.Interface = (*Store)(nil)

// New makes a Store. It does no I/O and starts no goroutine.
func New(c Config) (*Store, error) {
	if c.Client == nil || c.Codec == nil {
		return nil, errors.New("etcd store: a client and a codec are required")
	}
	if c.Cache != nil && c.Prober == nil {
		return nil, errors.New("etcd store: a cache needs a prober")
	}
	keys, err := newKeySpace(c.Prefix, c.ResourcePrefix)
	if err != nil {
		return nil, fmt.Errorf("etcd store for %s: %w", c.GroupResource, err)
	}
	s := &Store{
		reader:        c.Client,
		writer:        c.Client,
		keys:          keys,
		codec:         c.Codec,
		transformer:   c.Transformer,
		newFunc:       c.NewFunc,
		resource:      c.GroupResource,
		compaction:    c.Compaction,
		cache:         c.Cache,
		prober:        c.Prober,
		uncached:      c.Uncached,
		clock:         c.Clock,
		reportCorrupt: utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion),
		freshTimeout:  3 * time.Second,
	}
	if s.transformer == nil {
		s.transformer = identity.NewEncryptCheckTransformer()
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	if s.cache != nil {
		if s.watches, err = keywatch.New(keywatch.Config{
			Cache: s.cache, Revision: s.currentRevision, NewFunc: s.newFunc, Uncached: s.uncached, Clock: s.clock,
		}); err != nil {
			return nil, fmt.Errorf("etcd store for %s: %w", c.GroupResource, err)
		}
	}
	s.leases = newLeaseSharer(c.Client, c.LeaseReuse, c.LeaseObjects, s.clock)
	metrics.Register()
	return s, nil
}

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface. There is nothing to warm up.
func (s *Store) ReadinessCheck() error { return nil }

// CompactRevision implements storage.Interface.
func (s *Store) CompactRevision() int64 {
	if s.compaction == nil {
		return 0
	}
	return s.compaction.CompactRevision()
}

// RequestWatchProgress implements storage.Interface. It requests progress of the event log,
// which bookmarks then report.
func (s *Store) RequestWatchProgress(ctx context.Context) error {
	if s.cache == nil {
		return nil // there are no watches
	}
	return s.cache.Space().RequestProgress(ctx)
}

// GetCurrentResourceVersion implements storage.Interface; it is linearizable.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rev, err := s.currentRevision(ctx)
	return uint64(rev), err
}

func (s *Store) currentRevision(ctx context.Context) (int64, error) {
	key, err := s.keys.all()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	var rev int64
	if s.prober != nil {
		rev, err = s.prober.Revision(ctx)
	} else {
		rev, err = s.reader.Revision(ctx, key)
	}
	metrics.RecordEtcdRequest("get", s.resource, err, start)
	if err != nil {
		return 0, err
	}
	if rev <= 0 {
		return 0, fmt.Errorf("etcd answered with revision %d", rev)
	}
	return rev, nil
}
