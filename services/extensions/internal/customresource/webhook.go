package customresource

import (
	"time"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// withTimeout bounds the calls of the clients that inner configures. Upstream converts
// without the context of the request, so a webhook that never responds would block its
// requests, and the handlers of the CRD, forever.
func withTimeout(inner webhook.AuthenticationInfoResolverWrapper, timeout time.Duration) webhook.AuthenticationInfoResolverWrapper {
	return func(resolver webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		if inner != nil {
			resolver = inner(resolver)
		}
		return timeoutResolver{resolver: resolver, timeout: timeout}
	}
}

type timeoutResolver struct {
	resolver webhook.AuthenticationInfoResolver
	timeout  time.Duration
}

func (r timeoutResolver) ClientConfigFor(hostPort string) (*rest.Config, error) {
	return r.bound(r.resolver.ClientConfigFor(hostPort))
}

func (r timeoutResolver) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return r.bound(r.resolver.ClientConfigForService(name, namespace, port))
}

func (r timeoutResolver) bound(config *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = r.timeout
	return config, nil
}
