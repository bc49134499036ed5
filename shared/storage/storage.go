package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/render"
)

// Config configures a Storage.
type Config struct {
	// Generic is the configuration of the server. Open adds health checks and resource
	// transformers to it, so the server must be made later. Required.
	Generic *genericapiserver.Config
	// Etcd holds the flags, which are not changed. Required.
	Etcd *genericoptions.EtcdOptions
	// Factory knows the encoding, the key and the etcd of every resource. If it is nil,
	// callers set the encoding and the key of each storage.
	Factory serverstorage.StorageFactory
	// Selectable lists the selectable fields of the factory's resources; see
	// etcdstore.GetterConfig.
	Selectable map[schema.GroupResource]render.Selectable
	// Client is the client of an etcd in the process, which the caller closes. Nil means
	// to dial --etcd-servers.
	Client *clientv3.Client
	// EventLog configures how the caches learn of changes.
	EventLog EventLog
}

// Storage is the storage of a tier in one etcd or, with --etcd-servers-overrides, several.
// Its methods are safe for concurrent use, except for Run, Around and Close.
type Storage struct {
	options genericoptions.EtcdOptions
	log     EventLog
	main    *cluster
	getters []*etcdstore.Getter
	custom  *etcdstore.Getter
	hooks   map[string]genericapiserver.PostStartHookFunc
	// life ends when Close calls end.
	life context.Context
	end  context.CancelFunc

	mu       sync.Mutex
	clusters map[string]*cluster // by server list; guarded by mu until Run
}

// cluster is one etcd.
type cluster struct {
	client    *clientv3.Client
	owned     bool
	compactor *etcdstore.Compactor
	feeds     []feed
	relay     *eventlog.Relay // nil if this process is never elected
}

// Open connects to etcd, which must answer within 20 seconds and before ctx ends. Errors name
// the flag.
func Open(ctx context.Context, c Config) (*Storage, error) {
	g := c.Generic
	s := &Storage{
		options:  *c.Etcd,
		log:      c.EventLog,
		hooks:    map[string]genericapiserver.PostStartHookFunc{},
		clusters: map[string]*cluster{},
	}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	config := &s.options.StorageConfig
	config.StorageObjectCountTracker = g.StorageObjectCountTracker
	config.Transport.TracerProvider = g.TracerProvider
	if g.EgressSelector != nil {
		config.Transport.EgressLookup = g.EgressSelector.Lookup
	}
	if err := s.addEncryption(g); err != nil {
		s.Close()
		return nil, err
	}
	main, err := s.open(ctx, config.Transport.ServerList, c.Client)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("--etcd-servers: %w", err)
	}
	s.main = main
	s.custom = s.getter(&genericoptions.SimpleStorageFactory{StorageConfig: *config}, nil, g)
	s.getters = []*etcdstore.Getter{s.custom}
	if c.Factory != nil {
		s.getters = append(s.getters, s.getter(c.Factory, c.Selectable, g))
	}
	if s.log.Registerer != nil {
		root := eventlog.NewRoutes(s.log.Cluster, config.Prefix).Prefix()
		s.log.Registerer.MustRegister(caches{root: root, feeds: func() []feed { return main.feeds }})
	}
	g.AddHealthChecks(s.check("etcd", config.HealthcheckTimeout))
	g.AddReadyzChecks(s.check("etcd-readiness", config.ReadycheckTimeout), feedsCheck{main})
	if utilfeature.DefaultFeatureGate.Enabled(features.WatchCacheInitializationPostStartHook) {
		s.hooks["storage-readiness"] = awaitFeeds(feedsCheck{main}, g.StorageInitializationTimeout)
	}
	return s, nil
}

// readinessPoll is how often the hook storage-readiness checks the feeds.
const readinessPoll = 20 * time.Millisecond

// awaitFeeds returns a hook that returns when the caches have begun to follow etcd, or after
// limit, as kube-apiserver waits for its watch caches.
func awaitFeeds(feeds healthz.HealthChecker, limit time.Duration) genericapiserver.PostStartHookFunc {
	return func(hook genericapiserver.PostStartHookContext) error {
		ctx, cancel := context.WithTimeout(hook, limit)
		defer cancel()
		err := wait.PollUntilContextCancel(ctx, readinessPoll, true, func(context.Context) (bool, error) {
			return feeds.Check(nil) == nil, nil
		})
		if err != nil && hook.Err() == nil {
			klog.FromContext(hook).Error(feeds.Check(nil), "the storage is not ready", "flag", "--storage-initialization-timeout", "waited", limit)
		}
		return nil
	}
}

// open returns the cluster of a list of servers and connects to it at the first call.
func (s *Storage) open(ctx context.Context, servers []string, client *clientv3.Client) (*cluster, error) {
	key := strings.Join(slices.Sorted(slices.Values(servers)), ",")
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.clusters[key]; ok {
		return known, nil
	}
	made := &cluster{client: client}
	if client == nil {
		transport := s.options.StorageConfig.Transport
		transport.ServerList = servers
		dialled, err := etcdstore.Dial(ctx, transport)
		if err != nil {
			return nil, err
		}
		made.client, made.owned = dialled, true
	}
	made.compactor = etcdstore.NewCompactor(made.client, s.options.StorageConfig.CompactionInterval)
	s.clusters[key] = made
	if err := s.addFeeds(made, s.main == nil); err != nil {
		return nil, err
	}
	return made, nil
}

// getter returns the storage options of the factory's resources. selectable may be nil.
func (s *Storage) getter(factory serverstorage.StorageFactory, selectable map[schema.GroupResource]render.Selectable, g *genericapiserver.Config) *etcdstore.Getter {
	routes := eventlog.NewRoutes(s.log.Cluster, s.options.StorageConfig.Prefix)
	return etcdstore.NewGetter(etcdstore.GetterConfig{
		Storages: factory,
		ClientFor: func(servers []string) (*clientv3.Client, error) {
			other, err := s.open(context.Background(), servers, nil)
			if err != nil {
				return nil, fmt.Errorf("--etcd-servers-overrides: %w", err)
			}
			return other.client, nil
		},
		Compaction: func(servers []string) etcdstore.CompactionSource {
			if other, err := s.open(context.Background(), servers, nil); err == nil {
				return other.compactor
			}
			return s.main.compactor
		},
		Caching: func(servers []string, prefix string) *etcdstore.Caching {
			if other, err := s.open(context.Background(), servers, nil); err == nil {
				return other.cachingFor(prefix, routes)
			}
			return nil
		},
		Transformers:            g.ResourceTransformers,
		GarbageCollection:       s.options.EnableGarbageCollection,
		DeleteCollectionWorkers: s.options.DeleteCollectionWorkers,
		Selectable:              selectable,
	})
}

// check returns a health check that makes a linearizable read in every etcd.
func (s *Storage) check(name string, timeout time.Duration) healthz.HealthChecker {
	options := etcdstore.HealthOptions{Prefix: s.options.StorageConfig.Prefix, Timeout: timeout}
	var mu sync.Mutex
	checks := map[*cluster]func(context.Context) error{}
	return healthz.NamedCheck(name, func(req *http.Request) error {
		mu.Lock()
		for _, c := range s.all() {
			if checks[c] == nil {
				checks[c] = etcdstore.HealthCheck(c.client, options)
			}
		}
		known := slices.Collect(maps.Values(checks))
		mu.Unlock()
		var errs []error
		for _, check := range known {
			errs = append(errs, check(req.Context()))
		}
		return errors.Join(errs...)
	})
}

func (s *Storage) all() []*cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.clusters))
}

// RESTOptions returns the storage options of the factory's resources; without a factory, it
// returns Custom.
func (s *Storage) RESTOptions() generic.RESTOptionsGetter { return s.getters[len(s.getters)-1] }

// Custom returns storage options in the main etcd, in which the caller sets the key and the
// encoding.
func (s *Storage) Custom() generic.RESTOptionsGetter { return s.custom }

// Hooks returns the post-start hooks that the server must run, by name.
func (s *Storage) Hooks() map[string]genericapiserver.PostStartHookFunc { return s.hooks }

// Run updates the caches, compacts, counts objects and measures the databases until ctx
// ends; then it returns nil. Call it once, after all storages are made; ctx must outlive the
// server.
func (s *Storage) Run(ctx context.Context) error {
	etcdstore.ReportSizes(s.main.client)
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range s.all() {
		group.Go(func() error { return c.compactor.Run(ctx) })
		group.Go(func() error { return c.runFeeds(ctx) })
	}
	for _, getter := range s.getters {
		group.Go(func() error { return getter.Run(ctx) })
	}
	group.Go(func() error {
		return etcdstore.PollDatabaseSize(ctx, s.main.client, s.options.StorageConfig.DBMetricPollInterval)
	})
	return group.Wait()
}

// Around calls serve while Run is running, and closes the storage after serve has returned.
// If Run fails, the context of serve ends.
func (s *Storage) Around(ctx context.Context, serve func(context.Context) error) error {
	defer s.Close()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(running)
	group.Go(func() error { return s.Run(failed) })
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(failed, cancel)()
	err := serve(serving)
	stop()
	if failure := group.Wait(); failure != nil && !errors.Is(failure, context.Canceled) {
		err = errors.Join(failure, err)
	}
	return err
}

// Close closes the connections and stops the key services that Open has started.
func (s *Storage) Close() {
	s.end()
	for _, c := range s.all() {
		if c.owned {
			_ = c.client.Close() // no request is in flight
		}
	}
	if s.log.CloseConn {
		s.log.Conn.Close()
	}
}
