package keywatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"

	"triune.dev/shared/storage/bytecache"
)

// Config describes the watches of one resource.
type Config struct {
	// Cache holds what is watched. Required.
	Cache *bytecache.Cache
	// Revision returns etcd's current revision, linearizably. Required.
	Revision func(ctx context.Context) (int64, error)
	// NewFunc returns an empty object. Required where clients may ask for bookmarks.
	NewFunc func() runtime.Object
	// Uncached gives the answers of a kube-apiserver that has no watch cache for this
	// resource: no bookmarks, other errors.
	Uncached bool
	// Clock measures the intervals; nil means the real one.
	Clock clock.WithTicker

	// FreshTimeout is how long a watch waits for a revision that the client has named
	// and the cache does not have yet; 0 means 3 s, as in kube-apiserver.
	FreshTimeout time.Duration
	// BookmarkInterval is the time between two bookmarks; 0 means a minute.
	BookmarkInterval time.Duration
	// RetryTimeout limits how long a failing read of history is repeated; 0 means 30 s.
	RetryTimeout time.Duration
}

// Source makes the watches of one resource.
type Source struct {
	Config

	versioner storage.APIObjectVersioner
	// asking is held by the watch that asks the event log for progress.
	asking sync.Mutex
}

// New returns a Source. It does no I/O.
func New(c Config) (*Source, error) {
	if c.Cache == nil || c.Revision == nil {
		return nil, errors.New("keywatch: a cache and etcd's revision are required")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	for _, d := range []struct {
		value        *time.Duration
		defaultValue time.Duration
	}{{&c.FreshTimeout, 3 * time.Second}, {&c.BookmarkInterval, time.Minute}, {&c.RetryTimeout, 30 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.defaultValue
		}
	}
	return &Source{Config: c}, nil
}

// Request is a WATCH with valid parameters.
type Request struct {
	// Key in etcd of the one watched object or, with Recursive, the beginning of the keys
	// of all.
	Key       string
	Recursive bool
	// EndBookmark: the initial events end with a bookmark that says so. Bookmarks: others
	// are sent from time to time.
	EndBookmark, Bookmarks bool
	// Interest selects the changes that wake the watch: by default those below Key. A caller
	// that selects by a field of the cache may narrow it.
	Interest bytecache.Interest

	source *Source
	plan   plan
}

// Prepare checks the parameters of a WATCH of a key in etcd. Its errors are those that are
// answered before a stream begins.
func (s *Source) Prepare(key string, opts storage.ListOptions) (Request, error) {
	version, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return Request{}, err
	}
	if !strings.HasPrefix(key, s.Cache.Prefix()) {
		return Request{}, fmt.Errorf("watch %s: the cache holds what is below %s", key, s.Cache.Prefix())
	}
	plan := planWatch(int64(version), opts, utilfeature.DefaultFeatureGate.Enabled(features.WatchList), s.Uncached)
	r := Request{
		Key: key, Recursive: opts.Recursive,
		EndBookmark: plan.endBookmark, Bookmarks: plan.bookmarks,
		source: s, plan: plan,
	}
	if !r.Recursive || strings.HasSuffix(r.Key, "/") {
		r.Interest.Key = r.Key
	}
	return r, nil
}

// Concerns reports whether a key is one of those watched.
func (r *Request) Concerns(key string) bool {
	if r.Recursive {
		return strings.HasPrefix(key, r.Key)
	}
	return key == r.Key
}
