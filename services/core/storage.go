package core

import (
	"context"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	"triune.dev/shared/etcdstore"
)

// storageOptions is what the storage is opened from.
type storageOptions struct {
	etcd    *genericoptions.EtcdOptions
	factory *serverstorage.DefaultStorageFactory
	generic *genericapiserver.Config
	client  *clientv3.Client // nil: dial

	compactor *etcdstore.Compactor
}

// storage is where objects are kept.
type storage struct {
	options generic.RESTOptionsGetter
	// custom stores objects whose encoding the caller sets: custom resources and
	// APIServices, where tiers share one process and one etcd.
	custom generic.RESTOptionsGetter
	// healthChecks go into healthz, livez and readyz, readyzChecks into readyz.
	healthChecks, readyzChecks []healthz.HealthChecker
	// run does the background work (compaction) and blocks until ctx ends. It
	// outlives every request.
	run func(ctx context.Context) error
	// hooks are post-start hooks by name.
	hooks map[string]genericapiserver.PostStartHookFunc
	owned *clientv3.Client // nil when the client is somebody else's
}

// open reads the encryption configuration and opens the store of every resource.
func (o storageOptions) open(ctx context.Context) (*storage, error) {
	s := &storage{hooks: map[string]genericapiserver.PostStartHookFunc{}}
	name, hook, err := o.addEncryption()
	if err != nil {
		return nil, err
	}
	if hook != nil {
		s.hooks[name] = hook
	}
	if o.client == nil {
		if o.client, err = etcdstore.Dial(ctx, o.etcd.StorageConfig.Transport); err != nil {
			return nil, fmt.Errorf("--etcd-servers: %w", err)
		}
		s.owned = o.client
	}
	o.compactor = etcdstore.NewCompactor(o.client, o.etcd.StorageConfig.CompactionInterval)
	s.run = o.compactor.Run
	s.options = o.getter(o.factory)
	config := o.etcd.StorageConfig
	config.StorageObjectCountTracker = o.generic.StorageObjectCountTracker
	s.custom = o.getter(&genericoptions.SimpleStorageFactory{StorageConfig: config})
	s.healthChecks = []healthz.HealthChecker{o.check("etcd", o.etcd.StorageConfig.HealthcheckTimeout)}
	s.readyzChecks = []healthz.HealthChecker{o.check("etcd-readiness", o.etcd.StorageConfig.ReadycheckTimeout)}
	return s, nil
}

func (o storageOptions) getter(factory serverstorage.StorageFactory) generic.RESTOptionsGetter {
	return etcdstore.RESTOptions(factory, o.client,
		etcdstore.WithCompaction(func([]string) etcdstore.CompactionSource { return o.compactor }),
		etcdstore.WithTransformers(o.generic.ResourceTransformers),
		etcdstore.WithGarbageCollection(o.etcd.EnableGarbageCollection),
		etcdstore.WithDeleteCollectionWorkers(o.etcd.DeleteCollectionWorkers))
}

// check asks etcd for a linearizable read.
func (o storageOptions) check(name string, timeout time.Duration) healthz.HealthChecker {
	check := etcdstore.HealthCheck(o.client, etcdstore.HealthOptions{Prefix: o.etcd.StorageConfig.Prefix, Timeout: timeout})
	return healthz.NamedCheck(name, func(req *http.Request) error { return check(req.Context()) })
}

// close ends the connection to etcd, if it was made here.
func (s *storage) close() {
	if s.owned != nil {
		_ = s.owned.Close() // nothing is in flight any more
	}
}

// addEncryption reads --encryption-provider-config into the resource
// transformers of the configuration. With automatic reload, the hook that is
// returned follows the file.
func (o storageOptions) addEncryption() (name string, hook genericapiserver.PostStartHookFunc, err error) {
	file, reload := o.etcd.EncryptionProviderConfigFilepath, o.etcd.EncryptionProviderConfigAutomaticReload
	g := o.generic
	if file == "" || g.ResourceTransformers != nil {
		return "", nil, nil
	}
	server := wait.ContextForChannel(g.DrainedNotify())
	ctx, closeTransformers := context.WithCancel(server)
	config, err := encryptionconfig.LoadEncryptionConfig(ctx, file, reload, g.APIServerID)
	if err != nil {
		closeTransformers()
		return "", nil, fmt.Errorf("--encryption-provider-config=%s: %w", file, err)
	}
	if !reload {
		context.AfterFunc(server, closeTransformers)
		g.ResourceTransformers = encryptionconfig.StaticTransformers(config.Transformers)
		g.AddHealthChecks(config.HealthChecks...)
		return "", nil, nil
	}
	if len(config.HealthChecks) != 1 {
		closeTransformers()
		return "", nil, fmt.Errorf("--encryption-provider-config=%s: reload needs one health check, got %d", file, len(config.HealthChecks))
	}
	dynamic := encryptionconfig.NewDynamicTransformers(config.Transformers, config.HealthChecks[0], closeTransformers, config.KMSCloseGracePeriod)
	g.ResourceTransformers = dynamic
	g.AddHealthChecks(dynamic)
	const hookName = "start-encryption-provider-config-automatic-reload"
	return hookName, func(ctx genericapiserver.PostStartHookContext) error {
		follow := encryptioncontroller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
			file, dynamic, config.EncryptionFileContentHash, g.APIServerID)
		go follow.Run(ctx)
		return nil
	}, nil
}
