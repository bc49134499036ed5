package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"triune.dev/shared/etcdstore"
)

// Storage is an open etcd. Close it when nothing uses it any more.
type Storage struct {
	getter  *etcdstore.Getter
	client  *clientv3.Client
	options genericoptions.EtcdOptions
	compact *etcdstore.Compactor
	hooks   map[string]genericapiserver.PostStartHookFunc
}

// Open connects to etcd, which must answer before ctx ends or 20 seconds have
// passed. Health checks and resource transformers are added to g, so it must be
// called before the server is made of g. Errors name the flag.
func Open(ctx context.Context, options *genericoptions.EtcdOptions, g *genericapiserver.Config) (*Storage, error) {
	s := &Storage{options: *options, hooks: map[string]genericapiserver.PostStartHookFunc{}}
	config := &s.options.StorageConfig
	config.StorageObjectCountTracker = g.StorageObjectCountTracker
	config.Transport.TracerProvider = g.TracerProvider
	if g.EgressSelector != nil {
		config.Transport.EgressLookup = g.EgressSelector.Lookup
	}
	if err := s.addEncryption(g); err != nil {
		return nil, err
	}
	client, err := etcdstore.Dial(ctx, config.Transport)
	if err != nil {
		return nil, fmt.Errorf("--etcd-servers: %w", err)
	}
	s.client = client
	s.compact = etcdstore.NewCompactor(client, config.CompactionInterval)
	s.getter = etcdstore.RESTOptions(&genericoptions.SimpleStorageFactory{StorageConfig: *config}, client,
		etcdstore.WithCompaction(func([]string) etcdstore.CompactionSource { return s.compact }),
		etcdstore.WithTransformers(g.ResourceTransformers),
		etcdstore.WithGarbageCollection(options.EnableGarbageCollection),
		etcdstore.WithDeleteCollectionWorkers(options.DeleteCollectionWorkers))
	g.AddHealthChecks(s.check("etcd", config.HealthcheckTimeout))
	g.AddReadyzChecks(s.check("etcd-readiness", config.ReadycheckTimeout))
	return s, nil
}

// check asks etcd for a linearizable read.
func (s *Storage) check(name string, timeout time.Duration) healthz.HealthChecker {
	check := etcdstore.HealthCheck(s.client, etcdstore.HealthOptions{Prefix: s.options.StorageConfig.Prefix, Timeout: timeout})
	return healthz.NamedCheck(name, func(req *http.Request) error { return check(req.Context()) })
}

// RESTOptions gives the storage of a resource. Key and codec are for the caller to
// set in what it returns.
func (s *Storage) RESTOptions() generic.RESTOptionsGetter { return s.getter }

// Hooks are post-start hooks by name that the server has to run.
func (s *Storage) Hooks() map[string]genericapiserver.PostStartHookFunc { return s.hooks }

// Run compacts, counts objects and measures the database until ctx ends, which is
// no error. It is to outlive the server.
func (s *Storage) Run(ctx context.Context) error {
	etcdstore.ReportSizes(s.client)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.compact.Run(ctx) })
	group.Go(func() error { return s.getter.Run(ctx) })
	group.Go(func() error {
		return etcdstore.PollDatabaseSize(ctx, s.client, s.options.StorageConfig.DBMetricPollInterval)
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

// Close ends the connection.
func (s *Storage) Close() { _ = s.client.Close() } // nothing is in flight any more
