package standalone

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"triune.dev/services/aggregator"
	"triune.dev/services/core"
	"triune.dev/services/extensions"
	"triune.dev/services/standalone/internal/controllers"
	"triune.dev/services/standalone/internal/datadir"
	"triune.dev/services/standalone/internal/etcd"
	"triune.dev/services/standalone/internal/nats"
	"triune.dev/shared/server/apiserver"
	"triune.dev/shared/storage"
	"triune.dev/shared/storage/eventlog"
)

// Server is the whole chain, with the etcd and NATS in the process.
type Server struct {
	options    CompletedOptions
	unlock     func()       // unlocks the data directory; nil if it is not used
	member     *etcd.Member // nil with an external etcd
	nats       *nats.Server // nil with an external NATS, or none
	core       *core.Server
	extensions *extensions.Server
	aggregator *aggregator.Server
	head       http.Handler
	client     *rest.Config
}

// New starts etcd and NATS, unless flags name others, and makes the chain. It serves
// nothing yet. The caller must call Run, which also stops etcd and NATS.
func New(ctx context.Context, o CompletedOptions) (*Server, error) {
	s := &Server{options: o}
	if err := s.build(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *Server) build(ctx context.Context) (err error) {
	if s.options.embedEtcd || s.options.embedNATS {
		if s.unlock, err = datadir.Lock(s.options.dataDir); err != nil {
			return fmt.Errorf("--data-dir=%s: %w", s.options.dataDir, err)
		}
	}
	if s.options.embedEtcd {
		if s.member, err = etcd.Start(ctx, filepath.Join(s.options.dataDir, "etcd")); err != nil {
			return err
		}
		s.options.core.Etcd.StorageConfig.Transport.ServerList = []string{s.member.Endpoint}
	}
	if s.options.embedNATS {
		if s.nats, err = nats.Start(ctx, filepath.Join(s.options.dataDir, "nats")); err != nil {
			return err
		}
	}
	return s.buildChain(ctx)
}

// buildChain makes the tiers, the last one first. They share the authentication,
// authorization, admission, audit and limits of core's configuration.
func (s *Server) buildChain(ctx context.Context) error {
	log, err := s.eventLog()
	if err != nil {
		return err
	}
	config, err := s.options.core.Config(ctx, core.Environment{
		Head:     func() http.Handler { return s.head },
		Etcd:     s.etcdClient(),
		EventLog: log,
		Next: &apiserver.Next{
			Tier:    extensions.Tier,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.extensions.Delegated().ServeHTTP(w, req) }),
		},
	})
	if err != nil {
		return err
	}
	s.client = config.Generic.LoopbackClientConfig
	if s.nats != nil {
		config.Generic.AddReadyzChecks(healthz.NamedCheck("nats", func(*http.Request) error { return s.nats.Check() }))
	}
	if s.extensions, err = extensions.New(extensions.Config{
		Generic:         apiserver.DelegateConfig(config.Generic),
		Storage:         config.CustomStorage(),
		ServiceResolver: config.Services,
		WebhookAuth:     config.WebhookCredentials(),
	}); err != nil {
		return err
	}
	if s.core, err = core.New(config); err != nil {
		return err
	}
	if s.aggregator, err = aggregator.New(aggregator.Config{
		Generic:   config.Generic,
		Informers: config.Informers,
		Storage:   config.CustomStorage(),
		Next:      &apiserver.Next{Tier: core.Tier, Handler: s.core.Delegated()},
		Proxy:     s.options.aggregatorProxy(),

		Unsecured:   config.Unsecured,
		HTTP2Server: s.options.core.HTTP2Server(),
	}); err != nil {
		return err
	}
	s.aggregator.Server().Adopt(s.core.Server)
	s.aggregator.Server().Adopt(s.extensions.Server())
	s.head = s.aggregator.Handler()
	return s.options.writeKubeconfig(config.Generic.SecureServing.Listener.Addr())
}

func (s *Server) etcdClient() *clientv3.Client {
	if s.member == nil {
		return nil
	}
	return s.member.Client
}

// eventLog returns the configuration of all tiers' streams, in the NATS of the process or an
// external one.
func (s *Server) eventLog() (*storage.EventLog, error) {
	flags := s.options.core.EventLog()
	if s.nats == nil {
		log, err := flags.Open("triune", legacyregistry.Registerer())
		log.Tiers = eventlog.Tiers
		return &log, err
	}
	conn, err := s.nats.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect to the NATS in the process: %w", err)
	}
	log := flags.WithConn(conn, legacyregistry.Registerer(), eventlog.Tiers...)
	log.CloseConn = true
	return &log, nil
}

// Run serves until ctx ends and all requests in flight have been answered. The aggregator
// stops first, since its requests need the other tiers, and etcd and NATS last. Call it
// once.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	rest, stopRest := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRest()
	group, running := errgroup.WithContext(rest)
	group.Go(func() error { return s.core.Run(running) })
	group.Go(func() error { return s.extensions.Run(running) })
	group.Go(func() error {
		defer stopRest()
		head, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(running, cancel)()
		return s.aggregator.Run(head)
	})
	if len(s.options.controllers) > 0 {
		group.Go(func() error { return s.runControllers(ctx, running) })
	}
	if s.member != nil {
		group.Go(func() error {
			select {
			case err := <-s.member.Failed():
				return fmt.Errorf("etcd: %w", err)
			case <-running.Done():
				return nil
			}
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// runControllers runs the controllers until the first of the contexts ends, since they
// cannot work with a server that takes no more requests.
func (s *Server) runControllers(ctx, running context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(running, cancel)()
	var rootCA []byte
	if file := s.options.rootCAFile; file != "" {
		var err error
		if rootCA, err = os.ReadFile(file); err != nil {
			return fmt.Errorf("controllers: root CA: %w", err)
		}
	}
	return controllers.Run(ctx, controllers.Config{
		Client: s.client, RootCA: rootCA,
		SigningCertFile: s.options.signingCertFile, SigningKeyFile: s.options.signingKeyFile,
		TokenKeyFile: s.options.core.ServiceAccountSigningKeyFile,
		Elect:        !s.options.embedEtcd, // nobody else has an etcd inside this process
	}, s.options.controllers)
}

func (s *Server) close() {
	if s.nats != nil {
		s.nats.Close()
	}
	if s.member != nil {
		s.member.Close()
	}
	if s.unlock != nil {
		s.unlock()
	}
}
