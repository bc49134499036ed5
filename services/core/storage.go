package core

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
)

// StorageOptions is what a storage is opened from.
type StorageOptions struct {
	Etcd    *genericoptions.EtcdOptions
	Factory *serverstorage.DefaultStorageFactory
	Generic *genericapiserver.Config
}

// Storage is where objects are kept.
type Storage struct {
	RESTOptions generic.RESTOptionsGetter
	// HealthChecks go into healthz, livez and readyz, ReadyzChecks into readyz.
	HealthChecks, ReadyzChecks []healthz.HealthChecker
	// Run does the storage's background work (compaction) and blocks until ctx
	// ends. It outlives every request.
	Run func(ctx context.Context) error
	// Hooks are post-start hooks by name.
	Hooks map[string]genericapiserver.PostStartHookFunc
}

// AddEncryption reads --encryption-provider-config into the resource
// transformers of the configuration. With automatic reload, the hook that is
// returned follows the file.
func (o StorageOptions) AddEncryption() (name string, hook genericapiserver.PostStartHookFunc, err error) {
	file, reload := o.Etcd.EncryptionProviderConfigFilepath, o.Etcd.EncryptionProviderConfigAutomaticReload
	g := o.Generic
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
