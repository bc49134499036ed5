package authn

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"triune.dev/shared/server/agreement"
)

// SharedFlags are the flags of authentication that must have the same values in all tiers.
type SharedFlags struct {
	// ConfigFile is --authentication-config, Anonymous is --anonymous-auth.
	ConfigFile string
	Anonymous  bool
	// Audiences are the accepted audiences. They are empty for a tier that leaves them to
	// core.
	Audiences []string
	// RequestHeader holds core's flags for front proxies.
	RequestHeader *genericoptions.RequestHeaderAuthenticationOptions
}

// Settings returns the settings to compare between tiers. It reads ConfigFile.
func (f SharedFlags) Settings() (agreement.Settings, error) {
	config, err := loadConfiguration(f.ConfigFile, f.Anonymous)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config=%s: %w", f.ConfigFile, err)
	}
	settings := agreement.Settings{"--anonymous-auth": anonymousSetting(config.anonymous)}
	if len(config.issuers) > 0 {
		content, err := json.Marshal(config.issuers)
		if err != nil {
			return nil, fmt.Errorf("--authentication-config=%s: %w", f.ConfigFile, err)
		}
		settings["--authentication-config jwt"] = agreement.Digest(content)
	}
	if len(f.Audiences) > 0 {
		settings["--api-audiences"] = strings.Join(slices.Sorted(slices.Values(f.Audiences)), ",")
	}
	if headers := f.RequestHeader; headers != nil && headers.ClientCAFile != "" {
		for flag, names := range identityHeaders(headers) {
			if len(names) > 0 { // otherwise core ignores such headers
				settings[flag] = headerNames(names)
			}
		}
	}
	return settings, nil
}

// identityHeaders returns the values of the flags that name headers.
func identityHeaders(headers *genericoptions.RequestHeaderAuthenticationOptions) map[string][]string {
	return map[string][]string{
		"--requestheader-username-headers":     headers.UsernameHeaders,
		"--requestheader-uid-headers":          headers.UIDHeaders,
		"--requestheader-group-headers":        headers.GroupHeaders,
		"--requestheader-extra-headers-prefix": headers.ExtraHeaderPrefixes,
	}
}

// defaultIdentityHeaders are the headers that a tier removes from requests, and may assert,
// if its flags name none.
var defaultIdentityHeaders = map[string]string{
	"--requestheader-username-headers":     "x-remote-user",
	"--requestheader-uid-headers":          "x-remote-uid",
	"--requestheader-group-headers":        "x-remote-group",
	"--requestheader-extra-headers-prefix": "x-remote-extra-",
}

// Settings returns the settings to compare with core. A tier must remove the identity
// headers that core trusts, whichever front proxies it trusts itself.
func (o *Options) Settings() (agreement.Settings, error) {
	settings, err := SharedFlags{ConfigFile: o.ConfigFile, Anonymous: o.Anonymous, Audiences: o.Audiences}.Settings()
	if err != nil {
		return nil, err
	}
	for flag, names := range identityHeaders(&o.RequestHeader) {
		settings[flag] = cmp.Or(headerNames(names), defaultIdentityHeaders[flag])
	}
	return settings, nil
}

// headerNames joins names in lower case, because HTTP ignores case.
func headerNames(names []string) string { return strings.ToLower(strings.Join(names, ",")) }

// anonymousSetting returns "false", "true", or "true for" and the allowed paths.
func anonymousSetting(config *apiserverapi.AnonymousAuthConfig) string {
	if !config.Enabled {
		return "false"
	}
	if len(config.Conditions) == 0 {
		return "true"
	}
	var paths []string
	for _, condition := range config.Conditions {
		paths = append(paths, condition.Path)
	}
	slices.Sort(paths)
	return "true for " + strings.Join(paths, ",")
}
