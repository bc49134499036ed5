package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
	"triune.dev/shared/storage/render"
)

// GetterConfig configures a Getter.
type GetterConfig struct {
	// Storages knows the encoding, the key and the etcd of each resource. Required.
	Storages serverstorage.StorageFactory
	// Client is the client of the etcd that stores all resources. ClientFor replaces it: it
	// returns the client of the servers in the storage configuration of a resource
	// (--etcd-servers-overrides), and is called once for each list of servers. The caller
	// closes the clients.
	Client    *clientv3.Client
	ClientFor func(servers []string) (*clientv3.Client, error)
	// Transformers encrypt the resources at rest (--encryption-provider-config). Nil means
	// no encryption.
	Transformers value.ResourceTransformers
	// GarbageCollection is --enable-garbage-collector, DeleteCollectionWorkers
	// --delete-collection-workers.
	GarbageCollection       bool
	DeleteCollectionWorkers int
	// Compaction returns the source from which the Stores of an etcd learn of compactions.
	// Nil means none.
	Compaction func(servers []string) CompactionSource
	// Caching returns the caches of an etcd for keys with a prefix, or nil if no cache can
	// hold them, so that the resource cannot be stored. Without Caching, Stores have no
	// cache and cannot be watched.
	Caching func(servers []string, prefix string) *Caching
	// Selectable says where the stored bytes contain the selectable fields of a resource.
	// The fields must be those of the resource's [storage.AttrFunc].
	Selectable map[schema.GroupResource]render.Selectable
}

// Caching is shared by the Stores of one etcd, to answer reads and watches without it.
type Caching struct {
	Space  *bytecache.Space
	Prober *readindex.Prober
}

// uncached are the resources that kube-apiserver has no watch cache for.
var uncached = map[schema.GroupResource]bool{
	{Resource: "events"}:                         true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// Getter implements generic.RESTOptionsGetter with Stores. The Stores of one etcd share its
// client. It is safe for concurrent use.
type Getter struct {
	config  GetterConfig
	counter *counter

	mu      sync.Mutex
	clients map[string]*kv.Client // by server list; guarded by mu
}

var _ generic.RESTOptionsGetter = (*Getter)(nil)

// NewGetter returns the storage options of all resources that the factory knows.
func NewGetter(c GetterConfig) *Getter {
	return &Getter{config: c, clients: map[string]*kv.Client{}, counter: newCounter()}
}

// Run keeps the counts of stored objects, the metrics and what priority and
// fairness knows of them, up to date until the context is done, which is no
// error. How often is --etcd-count-metric-poll-period, from the factory's
// configuration.
func (g *Getter) Run(ctx context.Context) error {
	g.counter.run(ctx)
	return nil
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g *Getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := g.config.Storages.NewConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("unable to find storage destination for %v, due to %w", resource, err)
	}
	if g.config.Transformers != nil {
		own := *config
		own.Transformer = g.config.Transformers.TransformerForResource(resource)
		config = &own
	}
	// No CountMetricPollPeriod: the registry would start a goroutine for each
	// resource, Run does it with one.
	return generic.RESTOptions{
		StorageConfig:             config,
		Decorator:                 g.decorate,
		EnableGarbageCollection:   g.config.GarbageCollection,
		DeleteCollectionWorkers:   g.config.DeleteCollectionWorkers,
		ResourcePrefix:            g.config.Storages.ResourcePrefix(resource),
		StorageObjectCountTracker: config.StorageObjectCountTracker,
	}, nil
}

// decorate is the generic.StorageDecorator: it makes the Store of a resource. Of a watch
// cache's indexes it takes the names.
func (g *Getter) decorate(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	_ func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	_ func() runtime.Object,
	attributes storage.AttrFunc,
	_ storage.IndexerFuncs,
	indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	client, err := g.clientOf(config.Transport.ServerList)
	if err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
	}
	var compaction CompactionSource
	if g.config.Compaction != nil {
		compaction = g.config.Compaction(config.Transport.ServerList)
	}
	c := Config{
		Client:         client,
		Codec:          config.Codec,
		Transformer:    config.Transformer,
		NewFunc:        newFunc,
		Prefix:         config.Prefix,
		ResourcePrefix: resourcePrefix,
		GroupResource:  config.GroupResource,
		LeaseReuse:     time.Duration(config.LeaseManagerConfig.ReuseDurationSeconds) * time.Second,
		LeaseObjects:   config.LeaseManagerConfig.MaxObjectCount,
		Compaction:     compaction,
		Uncached:       uncached[config.GroupResource],
	}
	if err := g.addCache(&c, config.Transport.ServerList, attributes, indexers); err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
	}
	store, err := New(c)
	if err != nil {
		if c.Cache != nil {
			c.Cache.Release()
		}
		return nil, nil, err
	}
	// A Store holds nothing of its own but its place among the counted ones and its
	// share of a cache; its client belongs to the caller.
	uncount := g.counter.add(config.GroupResource, config.CountMetricPollPeriod, config.StorageObjectCountTracker, store.Stats)
	return store, sync.OnceFunc(func() {
		uncount()
		if c.Cache != nil {
			c.Cache.Release()
		}
	}), nil
}

// addCache gives a Store its place in the cache of its etcd. Stores with the same
// keys, as the versions of a custom resource have, share it.
func (g *Getter) addCache(c *Config, servers []string, attributes storage.AttrFunc, indexers *cache.Indexers) error {
	if g.config.Caching == nil {
		return nil
	}
	keys, err := newKeySpace(c.Prefix, c.ResourcePrefix)
	if err != nil {
		return err
	}
	prefix, err := keys.all()
	if err != nil {
		return err
	}
	caching := g.config.Caching(servers, prefix)
	if caching == nil {
		return fmt.Errorf("no event log tells of the keys below %s", prefix)
	}
	options, err := CacheOptions(CacheConfig{
		Codec: c.Codec, Transformer: c.Transformer, Attributes: attributes,
		Selectable: g.config.Selectable[c.GroupResource], NewFunc: c.NewFunc,
	})
	if err != nil {
		return err
	}
	options.Indexes = indexesOf(indexers)
	options.Group, options.Resource = c.GroupResource.Group, c.GroupResource.Resource
	c.Cache, err = caching.Space.Cache(prefix, options)
	c.Prober = caching.Prober
	return err
}

// indexesOf are the indexes of selectable fields and labels among those of a watch cache.
func indexesOf(indexers *cache.Indexers) []bytecache.Term {
	if indexers == nil {
		return nil
	}
	var all []bytecache.Term
	for _, name := range slices.Sorted(maps.Keys(*indexers)) {
		if field, ok := strings.CutPrefix(name, storage.FieldIndex("")); ok {
			all = append(all, bytecache.Term{Field: true, Key: field})
		} else if label, ok := strings.CutPrefix(name, storage.LabelIndex("")); ok {
			all = append(all, bytecache.Term{Key: label})
		}
	}
	return all
}

// clientOf returns the one client of a list of servers.
func (g *Getter) clientOf(servers []string) (*kv.Client, error) {
	if g.config.ClientFor == nil {
		servers = nil
	}
	key := strings.Join(slices.Sorted(slices.Values(servers)), ",")
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.clients[key]; ok {
		return c, nil
	}
	etcd := g.config.Client
	if g.config.ClientFor != nil {
		var err error
		if etcd, err = g.config.ClientFor(servers); err != nil {
			return nil, err
		}
	}
	if etcd == nil {
		return nil, errors.New("no etcd client")
	}
	c := kv.NewObserved(etcd, request.TrackStorageLatency)
	// The cost estimate of priority and fairness asks this checker whether
	// consistent reads are cheap.
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(etcd.Ctx(), versioned{etcd}, storage.RequestWatchProgress)
	g.clients[key] = c
	return c, nil
}

// versioned gives an etcd in the same process an endpoint to be asked for its
// version by.
type versioned struct{ *clientv3.Client }

func (v versioned) Endpoints() []string {
	if endpoints := v.Client.Endpoints(); len(endpoints) > 0 {
		return endpoints
	}
	return []string{fmt.Sprintf("in-process-%p", v.Client)}
}

func (v versioned) Status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	return v.Client.Status(ctx, endpoint)
}
