package core

import (
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/client-go/util/keyutil"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"triune.dev/shared/process/pki"
)

// addServiceAccountKeys reads the keys that verify ServiceAccount tokens, which
// are published for others to verify them with.
func (c *Config) addServiceAccountKeys(extra *controlplaneapiserver.Extra) error {
	accounts := c.options.Authentication.ServiceAccounts
	if len(accounts.KeyFiles) == 0 {
		extra.ServiceAccountPublicKeysGetter = accounts.ExternalPublicKeysGetter
		return nil
	}
	var keys []any
	for _, file := range accounts.KeyFiles {
		more, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file=%s: %w", file, err)
		}
		keys = append(keys, more...)
	}
	getter, err := serviceaccount.StaticPublicKeysGetter(keys)
	if err != nil {
		return fmt.Errorf("--service-account-key-file: %w", err)
	}
	extra.ServiceAccountPublicKeysGetter = getter
	return nil
}

// addTrust collects what extension API servers must know to authenticate our
// users and ourselves; it is published in the ConfigMap
// kube-system/extension-apiserver-authentication.
func (c *Config) addTrust(extra *controlplaneapiserver.Extra) error {
	trust := &extra.ClusterAuthenticationInfo
	clients, err := c.options.Authentication.ClientCert.GetClientCAContentProvider()
	if err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	trust.ClientCA = clients
	headers, err := c.options.Authentication.RequestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	if headers == nil {
		return nil
	}
	trust.RequestHeaderCA = headers.CAContentProvider
	trust.RequestHeaderAllowedNames = c.assertingNames(headers.AllowedClientNames)
	trust.RequestHeaderExtraHeaderPrefixes = headers.ExtraHeaderPrefixes
	trust.RequestHeaderGroupHeaders = headers.GroupHeaders
	trust.RequestHeaderUsernameHeaders = headers.UsernameHeaders
	trust.RequestHeaderUIDHeaders = headers.UIDHeaders
	return nil
}

// assertingNames are the common names of those who assert users to extension API servers:
// the aggregator, too, where it is a process of its own. An empty list allows all.
func (c *Config) assertingNames(allowed headerrequest.StringSliceProvider) headerrequest.StringSliceProvider {
	names := allowed.Value()
	if len(c.options.next.urls) == 0 || len(names) == 0 {
		return allowed
	}
	return headerrequest.StaticStringSlice(append(slices.Clone(names), pki.TierPrefix+"aggregator"))
}
