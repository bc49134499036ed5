package options

import (
	"fmt"
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
	"triune.dev/shared/transport/loopback"
)

// addWebhooks sets how webhooks are called, for admission and for the conversion of custom
// resources.
func (o *Options) addWebhooks(c *Config) error {
	services := c.Informers.Core().V1().Services().Lister()
	c.Services = clusterIPs{services}
	if o.EndpointRouting {
		slices, err := serviceproxy.NewEndpointSliceIndexerGetter(c.Informers.Discovery().V1().EndpointSlices())
		if err != nil {
			return fmt.Errorf("watch endpointslices: %w", err)
		}
		c.Services = endpoints{services, slices}
	}
	// A webhook at the Service default/kubernetes is called through core.
	c.WebhookAuth = webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, c.Generic.EgressSelector, c.CoreConfig, c.Generic.TracerProvider)
	return nil
}

// clusterIPs resolves a Service to its cluster IP.
type clusterIPs struct{ services corelisters.ServiceLister }

// ResolveEndpoint implements webhook.ServiceResolver.
func (c clusterIPs) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return serviceproxy.ResolveCluster(c.services, namespace, name, port)
}

// endpoints resolves a Service to one of its ready endpoints.
type endpoints struct {
	services corelisters.ServiceLister
	slices   serviceproxy.EndpointSliceGetter
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (e endpoints) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return serviceproxy.ResolveEndpoint(e.services, e.slices, namespace, name, port)
}

// ownSchemas is a client of core with the OpenAPI documents of this tier. Mutating policies
// need the schemas of objects, and core does not know those of this tier.
type ownSchemas struct {
	kubernetes.Interface
	own discovery.DiscoveryInterface
}

// Discovery implements kubernetes.Interface.
func (c ownSchemas) Discovery() discovery.DiscoveryInterface {
	return ownOpenAPI{c.Interface.Discovery(), c.own}
}

type ownOpenAPI struct {
	discovery.DiscoveryInterface
	own discovery.DiscoveryInterface
}

// OpenAPIV3 implements discovery.DiscoveryInterface.
func (d ownOpenAPI) OpenAPIV3() openapi.Client { return d.own.OpenAPIV3() }

// addAdmission makes the chain of the tier's admission plugins.
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
	config.Wrap(loopback.Delay(c.built, 0)) // plugins send requests before the handler exists
	own, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the tier itself: %w", err)
	}
	chain, err := triuneadmission.New(o.Admission, triuneadmission.Dependencies{
		Generic: c.Generic, Informers: c.Informers, Dynamic: c.Dynamic, Initializers: initializers,
		Client: ownSchemas{c.Client, own.Discovery()},
	})
	if err != nil {
		return err
	}
	c.Generic.AdmissionControl = chain
	c.admission = chain
	return nil
}
