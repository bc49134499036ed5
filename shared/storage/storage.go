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
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/render"
)

// Options say what to open.
type Options struct {
	// Etcd are the flags. They are not changed. Required.
	Etcd *genericoptions.EtcdOptions
	// Factory knows encoding, place and etcd of every resource. Nil leaves
	// encoding and key to those who ask for a storage.
	Factory serverstorage.StorageFactory
	// Selectable is where the factory's resources have their selectable fields, see
	// etcdstore.WithSelectable.
	Selectable map[schema.GroupResource]render.Selectable
	// Client is an etcd of this process, which somebody else closes. Nil means to
	// dial --etcd-servers.
	Client *clientv3.Client
	// EventLog is how changes become known.
	EventLog EventLog
}

// Storage is one open etcd or, with --etcd-servers-overrides, several. Close it
// when nothing uses it any more.
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
	relay     *eventlog.Relay // nil where this process is never elected
}

// Open connects to etcd, which must answer before ctx ends or 20 seconds have
// passed. Health checks and resource transformers are added to g, so it must be
// called before the server is made of g. Errors name the flag.
func Open(ctx context.Context, o Options, g *genericapiserver.Config) (*Storage, error) {
	s := &Storage{
		options:  *o.Etcd,
		log:      o.EventLog,
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
	main, err := s.open(ctx, config.Transport.ServerList, o.Client)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("--etcd-servers: %w", err)
	}
	s.main = main
	s.custom = s.getter(&genericoptions.SimpleStorageFactory{StorageConfig: *config}, g)
	s.getters = []*etcdstore.Getter{s.custom}
	if o.Factory != nil {
		s.getters = append(s.getters, s.getter(o.Factory, g, etcdstore.WithSelectable(o.Selectable)))
	}
	if s.log.Registerer != nil {
		root := eventlog.NewRoutes(s.log.Cluster, config.Prefix).Prefix()
		s.log.Registerer.MustRegister(caches{root: root, feeds: func() []feed { return main.feeds }})
	}
	g.AddHealthChecks(s.check("etcd", config.HealthcheckTimeout))
	g.AddReadyzChecks(s.check("etcd-readiness", config.ReadycheckTimeout), feedsCheck{main})
	return s, nil
}

// open makes the cluster of a list of servers, once.
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

func (s *Storage) getter(factory serverstorage.StorageFactory, g *genericapiserver.Config, more ...etcdstore.Option) *etcdstore.Getter {
	routes := eventlog.NewRoutes(s.log.Cluster, s.options.StorageConfig.Prefix)
	return etcdstore.RESTOptions(factory, s.main.client, append(more,
		etcdstore.WithClientFor(func(servers []string) (*clientv3.Client, error) {
			other, err := s.open(context.Background(), servers, nil)
			if err != nil {
				return nil, fmt.Errorf("--etcd-servers-overrides: %w", err)
			}
			return other.client, nil
		}),
		etcdstore.WithCompaction(func(servers []string) etcdstore.CompactionSource {
			if other, err := s.open(context.Background(), servers, nil); err == nil {
				return other.compactor
			}
			return s.main.compactor
		}),
		etcdstore.WithCaching(func(servers []string, prefix string) *etcdstore.Caching {
			if other, err := s.open(context.Background(), servers, nil); err == nil {
				return other.cachingOf(prefix, routes)
			}
			return nil
		}),
		etcdstore.WithTransformers(g.ResourceTransformers),
		etcdstore.WithGarbageCollection(s.options.EnableGarbageCollection),
		etcdstore.WithDeleteCollectionWorkers(s.options.DeleteCollectionWorkers))...)
}

// check asks every etcd for a linearizable read.
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

// RESTOptions gives the storage of the resources that the factory knows; without
// a factory it is Custom.
func (s *Storage) RESTOptions() generic.RESTOptionsGetter { return s.getters[len(s.getters)-1] }

// Custom gives storage in the main etcd whose key and encoding the caller sets in
// what it returns.
func (s *Storage) Custom() generic.RESTOptionsGetter { return s.custom }

// Hooks are post-start hooks by name that the server has to run.
func (s *Storage) Hooks() map[string]genericapiserver.PostStartHookFunc { return s.hooks }

// Run compacts, counts objects and measures the databases until ctx ends, which is
// no error. It is to outlive the server, and every storage must have been made.
func (s *Storage) Run(ctx context.Context) error {
	etcdstore.ReportSizes(s.main.client)
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range s.all() {
		group.Go(func() error { return c.compactor.Run(ctx) })
		group.Go(func() error { return c.follow(ctx) })
	}
	for _, getter := range s.getters {
		group.Go(func() error { return getter.Run(ctx) })
	}
	group.Go(func() error {
		return etcdstore.PollDatabaseSize(ctx, s.main.client, s.options.StorageConfig.DBMetricPollInterval)
	})
	return group.Wait()
}

// Around runs serve with the storage at work behind it, and closes the storage
// when serve has returned. If the storage fails, serve's context ends.
func (s *Storage) Around(ctx context.Context, serve func(context.Context) error) error {
	defer s.Close()
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(behind)
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

// Close ends the connections and the key services that were made here.
func (s *Storage) Close() {
	s.end()
	for _, c := range s.all() {
		if c.owned {
			_ = c.client.Close() // nothing is in flight any more
		}
	}
	if s.log.CloseConn {
		s.log.Conn.Close()
	}
}
