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

// addServiceAccountKeys reads the public keys of ServiceAccount tokens, which core also
// publishes.
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

// addClusterAuthenticationInfo collects the CAs and headers with which extension API
// servers authenticate users and the aggregator. They are published in the ConfigMap
// kube-system/extension-apiserver-authentication.
func (c *Config) addClusterAuthenticationInfo(extra *controlplaneapiserver.Extra) error {
	info := &extra.ClusterAuthenticationInfo
	clients, err := c.options.Authentication.ClientCert.GetClientCAContentProvider()
	if err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	info.ClientCA = clients
	headers, err := c.options.Authentication.RequestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	if headers == nil {
		return nil
	}
	info.RequestHeaderCA = headers.CAContentProvider
	info.RequestHeaderAllowedNames = c.frontProxyNames(headers.AllowedClientNames)
	info.RequestHeaderExtraHeaderPrefixes = headers.ExtraHeaderPrefixes
	info.RequestHeaderGroupHeaders = headers.GroupHeaders
	info.RequestHeaderUsernameHeaders = headers.UsernameHeaders
	info.RequestHeaderUIDHeaders = headers.UIDHeaders
	return nil
}

// frontProxyNames returns the common names that may assert users to extension API servers.
// They include that of the aggregator if it is a process of its own. An empty list allows
// all names.
func (c *Config) frontProxyNames(allowed headerrequest.StringSliceProvider) headerrequest.StringSliceProvider {
	names := allowed.Value()
	if len(c.options.next.urls) == 0 || len(names) == 0 {
		return allowed
	}
	return headerrequest.StaticStringSlice(append(slices.Clone(names), pki.TierPrefix+"aggregator"))
}
