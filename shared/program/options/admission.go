package options

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/apiserver/pkg/admission"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"

	triuneadmission "triune.dev/shared/server/admission"
)

// webhooks sets what reaches webhooks, for admission and for the conversion of
// custom resources.
func (c *Config) webhooks() {
	c.Services = clusterIPs{c.Informers.Core().V1().Services().Lister()}
	// A webhook that is the Service default/kubernetes is core's business.
	c.WebhookAuth = webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, c.Generic.EgressSelector, c.CoreConfig, c.Generic.TracerProvider)
}

// clusterIPs finds a Service by its cluster IP and leaves the rest to whoever
// routes those.
type clusterIPs struct{ services corelisters.ServiceLister }

// ResolveEndpoint implements webhook.ServiceResolver.
func (c clusterIPs) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return serviceproxy.ResolveCluster(c.services, namespace, name, port)
}

// describing is a client of core that describes what this tier serves: policies change
// objects by their schemas, and those of this tier's objects are not all known to core.
type describing struct {
	kubernetes.Interface
	own discovery.DiscoveryInterface
}

// Discovery implements kubernetes.Interface.
func (d describing) Discovery() discovery.DiscoveryInterface {
	return described{d.Interface.Discovery(), d.own}
}

type described struct {
	discovery.DiscoveryInterface
	own discovery.DiscoveryInterface
}

// OpenAPIV3 implements discovery.DiscoveryInterface.
func (d described) OpenAPIV3() openapi.Client { return d.own.OpenAPIV3() }

// onceBuilt has requests to this tier wait until there is somebody to serve them.
type onceBuilt struct {
	built <-chan struct{}
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o onceBuilt) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case <-o.built:
		return o.next.RoundTrip(req)
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
}

// addAdmission builds the chain of the tier's plugins.
func (o *Options) addAdmission(c *Config) error {
	if o.Admission == nil {
		return nil
	}
	initializers := []admission.PluginInitializer{webhookinitializer.NewPluginInitializer(c.WebhookAuth, c.Services)}
	if o.Tier.Initializers != nil {
		more, err := o.Tier.Initializers(c)
		if err != nil {
			return fmt.Errorf("admission: %w", err)
		}
		initializers = append(initializers, more...)
	}
	config := rest.CopyConfig(c.Generic.LoopbackClientConfig)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return onceBuilt{c.built, next} })
	own, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the tier itself: %w", err)
	}
	chain, err := triuneadmission.New(o.Admission, triuneadmission.Dependencies{
		Generic: c.Generic, Informers: c.Informers, Dynamic: c.Dynamic, Initializers: initializers,
		Client: describing{c.Client, own.Discovery()},
	})
	if err != nil {
		return err
	}
	c.Generic.AdmissionControl = chain
	c.admission = chain
	return nil
}
