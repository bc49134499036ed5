package extensions

import (
	"errors"
	"time"

	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"

	"triune.dev/shared/server/apiserver"
)

// Config is everything the tier is built from.
type Config struct {
	// Generic holds authentication, authorization, audit, limits, admission and,
	// where the tier listens, serving. It is not changed and may be shared with
	// other tiers of the process; what of it depends on the tier (serializer,
	// storage, loopback client, OpenAPI) is ignored. Required.
	Generic *genericapiserver.Config
	// Informers read what other tiers own and this one decides by: namespaces,
	// RBAC rules, webhooks, policies, Services. The server starts them. Nil when
	// somebody else does.
	Informers informers.SharedInformerFactory
	// Storage gives the storage of a resource. Keys below the prefix and codecs
	// are set by this package, so it must honour the codec and the resource
	// prefix in the options that it has returned. Required.
	Storage generic.RESTOptionsGetter
	// ServiceResolver and WebhookAuth reach conversion webhooks: the address of
	// one that is given as a Service, and the credentials to present. Nil leaves
	// webhooks given by URL without credentials.
	ServiceResolver webhook.ServiceResolver
	WebhookAuth     webhook.AuthenticationInfoResolverWrapper
	// PeerDelay is how long other replicas may need to learn of a CRD. A CRD is
	// established, and its first object created, only after that, so that clients
	// which reach another replica next do not meet 404. 0 when there is no other
	// replica.
	PeerDelay time.Duration
	// HTTP2Server is the HTTP/2 server of the listener; see apiserver.Config.
	HTTP2Server apiserver.HTTP2Server
	// Hooks are further post-start hooks by name.
	Hooks map[string]genericapiserver.PostStartHookFunc
}

// webhookTimeout bounds one call of a conversion webhook: the longest that an
// admission webhook may be configured to take.
const webhookTimeout = 30 * time.Second

func (c Config) validate() error {
	switch {
	case c.Generic == nil:
		return errors.New("extensions: Generic is required")
	case c.Storage == nil:
		return errors.New("extensions: Storage is required")
	}
	return nil
}
