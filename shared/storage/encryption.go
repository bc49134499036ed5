package storage

import (
	"context"
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
)

// reloadHook is kube-apiserver's name of the hook that reloads the encryption configuration.
const reloadHook = "start-encryption-provider-config-automatic-reload"

// addEncryption reads --encryption-provider-config. The transformers work until s is closed.
func (s *Storage) addEncryption(g *genericapiserver.Config) error {
	file, reload := s.options.EncryptionProviderConfigFilepath, s.options.EncryptionProviderConfigAutomaticReload
	if file == "" || g.ResourceTransformers != nil {
		return nil
	}
	ctx, end := context.WithCancel(s.life)
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, file, reload, g.APIServerID)
	if err != nil {
		end()
		return fmt.Errorf("--encryption-provider-config=%s: %w", file, err)
	}
	if !reload {
		context.AfterFunc(s.life, end)
		g.ResourceTransformers = encryptionconfig.StaticTransformers(loaded.Transformers)
		addHealthChecks(g, loaded.HealthChecks...)
		return nil
	}
	if len(loaded.HealthChecks) != 1 {
		end()
		return fmt.Errorf("--encryption-provider-config=%s: reload needs one health check, got %d", file, len(loaded.HealthChecks))
	}
	transformers := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], end, loaded.KMSCloseGracePeriod)
	g.ResourceTransformers = transformers
	addHealthChecks(g, transformers)
	s.hooks[reloadHook] = func(hook genericapiserver.PostStartHookContext) error {
		controller := encryptioncontroller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
			file, transformers, loaded.EncryptionFileContentHash, g.APIServerID)
		go controller.Run(hook)
		return nil
	}
	return nil
}

// addHealthChecks adds checks to healthz and readyz, but not to livez: a restart does not
// repair a KMS plugin, and the new process would lack the keys that this one has cached.
func addHealthChecks(g *genericapiserver.Config, checks ...healthz.HealthChecker) {
	g.HealthzChecks = append(g.HealthzChecks, checks...)
	g.ReadyzChecks = append(g.ReadyzChecks, checks...)
}
