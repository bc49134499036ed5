package aggregator

import (
	"errors"

	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"

	"triune.dev/services/aggregator/internal/discovery"
	"triune.dev/shared/server/apiserver"
)

// Config is everything the tier is built from.
type Config struct {
	// Generic holds authentication, authorization, audit, limits, admission and,
	// where the tier listens, serving. It is not changed and may be shared with
	// other tiers of the process; what of it depends on the tier (serializer,
	// storage, loopback client) is ignored. Required.
	Generic *genericapiserver.Config
	// Informers read what other tiers own and this one decides by: Services and
	// EndpointSlices to reach extension servers, RBAC rules. The server starts
	// them; what was started already stays as it is. Required.
	Informers informers.SharedInformerFactory
	// Storage gives the storage of APIServices. Codec and key are set by this
	// package. Required.
	Storage generic.RESTOptionsGetter
	// Next is the tier behind this one. CRDs are read through it. Required.
	Next *apiserver.Next
	// Proxy says how extension servers are reached.
	Proxy Proxy
	// HTTP2Server is the HTTP/2 server of the listener; see apiserver.Config.
	HTTP2Server apiserver.HTTP2Server
	// Hooks are further post-start hooks by name.
	Hooks map[string]genericapiserver.PostStartHookFunc

	pace discovery.Pace // for tests
}

// Proxy says how extension servers are reached.
type Proxy struct {
	// CertFile and KeyFile are the client certificate of the front proxy
	// (--proxy-client-cert-file, --proxy-client-key-file). They are read again when
	// they change. Without them extension servers get no proof of who is asking.
	CertFile, KeyFile string
	// EndpointRouting sends requests to the endpoints of a Service, balanced,
	// instead of to its cluster IP (--enable-aggregator-routing).
	EndpointRouting bool
	// ForwardRedirects passes on redirects of extension servers instead of
	// refusing them (--aggregator-reject-forwarding-redirect=false).
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
