package core

import (
	"maps"

	triuneoptions "triune.dev/shared/program/options"
	"triune.dev/shared/server/agreement"
	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authz"
)

// settings returns the settings that core publishes for the comparison with other tiers.
// It reads the files at each call.
func (c *Config) settings() (agreement.Settings, error) {
	settings, err := triuneoptions.Files{
		triuneoptions.AuditPolicy:   c.options.Audit.PolicyFile,
		triuneoptions.Encryption:    c.options.Etcd.EncryptionProviderConfigFilepath,
		triuneoptions.AdmissionFile: c.options.Admission.GenericAdmission.ConfigFile,
	}.Settings(c.Generic.FeatureGate)
	if err != nil {
		return nil, err
	}
	flags := authn.SharedFlags{
		ConfigFile:    c.options.Authentication.AuthenticationConfigFile,
		Audiences:     c.Generic.Authentication.APIAudiences,
		RequestHeader: c.options.Authentication.RequestHeader,
	}
	if anonymous := c.options.Authentication.Anonymous; anonymous != nil {
		flags.Anonymous = anonymous.Allow
	}
	authentication, err := flags.Settings()
	if err != nil {
		return nil, err
	}
	maps.Copy(settings, authentication)
	settings[authz.ModesSetting] = authz.FormatModes(c.options.Authorization.Modes)
	if file := c.options.Authorization.AuthorizationConfigurationFile; file != "" {
		// The modes in the file are not compared, since the file may change at any time.
		digest, err := agreement.FileDigest(file)
		if err != nil {
			return nil, err
		}
		settings[authz.ModesSetting] = "--authorization-config " + digest
	}
	return settings, nil
}
