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

// Config is the configuration of a Server.
type Config struct {
	// Generic configures authentication, authorization, audit, limits, admission and, if
	// the tier listens, serving. It is not changed and may be shared with other tiers of
	// the process; fields that depend on the tier (serializer, storage, loopback client,
	// OpenAPI) are ignored. Required.
	Generic *genericapiserver.Config
	// Informers read objects of other tiers: namespaces, RBAC rules, webhooks, policies and
	// Services. The server starts them. Nil if the caller does.
	Informers informers.SharedInformerFactory
	// Storage returns the storage options of a resource. This package then sets the codec
	// and the resource prefix in them, which their decorator must honour. Required.
	Storage generic.RESTOptionsGetter
	// ServiceResolver and WebhookAuth find conversion webhooks: the address of a Service,
	// and the credentials to present. If they are nil, only webhooks at URLs work, without
	// credentials.
	ServiceResolver webhook.ServiceResolver
	WebhookAuth     webhook.AuthenticationInfoResolverWrapper
	// PeerDelay is the time in which other replicas learn of a CRD. The CRD is established,
	// and its first object created, only afterwards, so that clients get no 404 from
	// another replica. 0 if there is no other replica.
	PeerDelay time.Duration
	// HTTP2Server is the HTTP/2 server of the listener; see apiserver.Config.
	HTTP2Server apiserver.HTTP2Server
	// Hooks are further post-start hooks by name.
	Hooks map[string]genericapiserver.PostStartHookFunc
}

// webhookTimeout bounds a call of a conversion webhook. It is the longest timeout of
// admission webhooks.
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
