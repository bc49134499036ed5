package options

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/featuregate"

	"triune.dev/shared/server/agreement"
)

// Files are those that all tiers must be given alike, by the names of their flags; the
// name of a file is empty where none is given.
type Files map[string]string

// AuditPolicy and its like are the names of the flags in Files.
const (
	AuditPolicy   = "--audit-policy-file"
	Encryption    = "--encryption-provider-config"
	AdmissionFile = "--admission-control-config-file"
)

// Settings reads the files, and adds the feature gates.
func (f Files) Settings(gates featuregate.FeatureGate) (agreement.Settings, error) {
	settings := agreement.Settings{}
	for flag, name := range f {
		digest, err := agreement.FileDigest(name)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", flag, name, err)
		}
		settings[flag] = digest
	}
	if known, ok := gates.(featuregate.MutableFeatureGate); ok {
		for gate := range known.GetAll() {
			settings["--feature-gates "+string(gate)] = strconv.FormatBool(gates.Enabled(gate))
		}
	}
	return settings, nil
}

// settings are what this tier has been told.
func (o *Options) settings(gates featuregate.FeatureGate) (agreement.Settings, error) {
	files := Files{AuditPolicy: o.Audit.PolicyFile, Encryption: o.Etcd.EncryptionProviderConfigFilepath}
	if o.Admission != nil {
		files[AdmissionFile] = o.Admission.ConfigFile
	}
	settings, err := files.Settings(gates)
	if err != nil {
		return nil, err
	}
	authentication, err := o.Authentication.Settings()
	if err != nil {
		return nil, err
	}
	maps.Copy(settings, authentication)
	maps.Copy(settings, o.Authorization.Settings())
	return settings, nil
}

// agree makes the comparison with core.
func (o *Options) agree(c *Config) (err error) {
	c.agreement, err = agreement.New(agreement.Config{
		Tier: o.Tier.Name, Core: core,
		Own: func() (agreement.Settings, error) { return o.settings(c.Generic.FeatureGate) },
		Ask: func(ctx context.Context) ([]byte, error) {
			return c.Client.Discovery().RESTClient().Get().AbsPath(agreement.Path).DoRaw(ctx)
		},
		OnCoreSettings: c.authorizer.SetCoreSettings,
		Registerer:     o.Registerer,
	})
	return err
}

// compareSettings runs the comparison while the server runs.
func (c *Config) compareSettings(ctx genericapiserver.PostStartHookContext) error {
	go c.agreement.Run(ctx)
	return nil
}
