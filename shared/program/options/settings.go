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

// Files maps flags to the files that they name, empty if not given, for flags whose files
// must have the same content in all tiers.
type Files map[string]string

// The flags in Files.
const (
	AuditPolicy   = "--audit-policy-file"
	Encryption    = "--encryption-provider-config"
	AdmissionFile = "--admission-control-config-file"
)

// Settings returns the digests of the files and the feature gates, for the comparison of
// tiers.
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

// settings returns the settings of this tier that must agree with core's.
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

// addAgreement makes the comparison of this tier's settings with core's.
func (o *Options) addAgreement(c *Config) (err error) {
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

// compareSettings is a post-start hook that runs the comparison until the server ends.
func (c *Config) compareSettings(ctx genericapiserver.PostStartHookContext) error {
	go c.agreement.Run(ctx)
	return nil
}
