package aggregator

import (
	"errors"
	"net"

	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"

	"triune.dev/services/aggregator/internal/discovery"
	"triune.dev/shared/server/apiserver"
)

// Config configures a [Server].
type Config struct {
	// Generic configures authentication, authorization, audit, limits, admission and, if the
	// tier listens, serving. It is not modified and may be shared with other tiers of the
	// process; its serializer, storage and loopback client are ignored. Required.
	Generic *genericapiserver.Config
	// Informers provide objects of other tiers: Services and EndpointSlices of extension
	// servers, and RBAC rules. The server starts the informers that are not running. Required.
	Informers informers.SharedInformerFactory
	// Storage provides the storage of APIServices, except for codec and key. Required.
	Storage generic.RESTOptionsGetter
	// Next is the next tier, which also provides CRDs. Required.
	Next *apiserver.Next
	// Proxy configures the connections to extension servers.
	Proxy Proxy
	// Unsecured is a listener for requests without authentication; see apiserver.Config.
	Unsecured net.Listener
	// HTTP2Server is the HTTP/2 server of the listener; see apiserver.Config.
	HTTP2Server apiserver.HTTP2Server
	// Hooks are additional post-start hooks by name.
	Hooks map[string]genericapiserver.PostStartHookFunc

	pace discovery.Pace // for tests
}

// Proxy configures the connections to extension servers.
type Proxy struct {
	// CertFile and KeyFile are the client certificate of the front proxy
	// (--proxy-client-cert-file, --proxy-client-key-file). They are reloaded when they change.
	// Without them, extension servers cannot trust the identity headers.
	CertFile, KeyFile string
	// EndpointRouting balances requests over the endpoints of a Service instead of sending them
	// to its cluster IP (--enable-aggregator-routing).
	EndpointRouting bool
	// ForwardRedirects forwards redirects of extension servers instead of refusing them
	// (--aggregator-reject-forwarding-redirect=false).
	ForwardRedirects bool
}

func (c Config) validate() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("aggregator: "+what+" is required"))
		}
	}
	require(c.Generic != nil, "Generic")
	require(c.Informers != nil, "Informers")
	require(c.Storage != nil, "Storage")
	require(c.Next != nil && c.Next.Handler != nil, "Next")
	require((c.Proxy.CertFile == "") == (c.Proxy.KeyFile == ""), "both or neither of Proxy.CertFile and Proxy.KeyFile")
	return errors.Join(errs...)
}
