package authn

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/cel"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"

	"triune.dev/shared/server/agreement"
)

// Told is what core and the other tiers must be told alike of authentication.
type Told struct {
	// ConfigFile is --authentication-config, Anonymous is --anonymous-auth.
	ConfigFile string
	Anonymous  bool
	// Audiences are those that are accepted; none for a tier that leaves them to core.
	Audiences []string
	// RequestHeader is what core is told of front proxies.
	RequestHeader *genericoptions.RequestHeaderAuthenticationOptions
}

// Settings reads the file that is told of.
func (t Told) Settings() (agreement.Settings, error) {
	config, err := configured(t.ConfigFile, t.Anonymous)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config=%s: %w", t.ConfigFile, err)
	}
	settings := agreement.Settings{"--anonymous-auth": anonymousSetting(config.anonymous)}
	if len(config.issuers) > 0 {
		content, err := json.Marshal(config.issuers)
		if err != nil {
			return nil, fmt.Errorf("--authentication-config=%s: %w", t.ConfigFile, err)
		}
		settings["--authentication-config jwt"] = agreement.Digest(content)
	}
	if len(t.Audiences) > 0 {
		settings["--api-audiences"] = strings.Join(slices.Sorted(slices.Values(t.Audiences)), ",")
	}
	if headers := t.RequestHeader; headers != nil && headers.ClientCAFile != "" {
		for flag, names := range identityHeaders(headers) {
			if len(names) > 0 { // else core believes no such header, whoever sends it
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

// removedByDefault are the headers that a tier removes from requests, and may assert, where
// its flags name none.
var removedByDefault = map[string]string{
	"--requestheader-username-headers":     "x-remote-user",
	"--requestheader-uid-headers":          "x-remote-uid",
	"--requestheader-group-headers":        "x-remote-group",
	"--requestheader-extra-headers-prefix": "x-remote-extra-",
}

// Settings returns what these options say of authentication. Whatever front proxies the tier
// believes, it must remove the headers that core believes.
func (o *Options) Settings() (agreement.Settings, error) {
	settings, err := Told{ConfigFile: o.ConfigFile, Anonymous: o.Anonymous, Audiences: o.Audiences}.Settings()
	if err != nil {
		return nil, err
	}
	for flag, names := range identityHeaders(&o.RequestHeader) {
		settings[flag] = cmp.Or(headerNames(names), removedByDefault[flag])
	}
	return settings, nil
}

// headerNames ignores case, as HTTP does.
func headerNames(names []string) string { return strings.ToLower(strings.Join(names, ",")) }

// anonymousSetting is "false", "true", or "true for" the paths that are let through.
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

// configuration holds the parts of an AuthenticationConfiguration that concern every tier, or
// their values by flag where there is no file.
type configuration struct {
	anonymous *apiserverapi.AnonymousAuthConfig
	// byFile: the file says who is anonymous.
	byFile  bool
	issuers []apiserverapi.JWTAuthenticator
}

func configured(file string, anonymous bool) (configuration, error) {
	result := configuration{anonymous: &apiserverapi.AnonymousAuthConfig{Enabled: anonymous}}
	if file == "" {
		return result, nil
	}
	config, err := readConfiguration(file)
	if err != nil {
		return configuration{}, err
	}
	if errs := validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), config, nil); len(errs) > 0 {
		return configuration{}, errs.ToAggregate()
	}
	result.issuers = config.JWT
	if config.Anonymous != nil {
		result.anonymous, result.byFile = config.Anonymous, true
	}
	return result, nil
}
