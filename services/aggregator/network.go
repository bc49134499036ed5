package aggregator

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	genericfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/tracing"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	availabilitymetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"

	"triune.dev/services/aggregator/internal/availability"
	"triune.dev/services/aggregator/internal/remote"
)

// network holds the connections to extension servers.
type network struct {
	remote.Network
	transports *remote.Transports
	identity   *remote.Identity
	// certificates reloads the client certificate; nil if there is none.
	certificates *dynamiccertificates.DynamicCertKeyPairContent
}

func newNetwork(config Config, unreachable func(string)) (*network, error) {
	n := &network{}
	if file := config.Proxy.CertFile; file != "" {
		var err error
		n.certificates, err = dynamiccertificates.NewDynamicServingContentFromFiles("aggregator-proxy-cert", file, config.Proxy.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--proxy-client-cert-file, --proxy-client-key-file: %w", err)
		}
		n.identity = remote.NewIdentity(n.certificates)
	}
	var dial remote.DialFunc // nil selects plain TCP
	if selector := config.Generic.EgressSelector; selector != nil {
		through, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
		if err != nil {
			return nil, fmt.Errorf("egress selector: %w", err)
		}
		dial = remote.DialFunc(through)
	}
	var wrap func(http.RoundTripper) http.RoundTripper
	if g := config.Generic; g.FeatureGate.Enabled(genericfeatures.APIServerTracing) && g.TracerProvider != nil {
		wrap = tracing.WrapperFor(g.TracerProvider)
	}
	n.transports = remote.NewTransports(n.identity, dial, wrap)
	if n.certificates != nil {
		n.certificates.AddListener(n.transports)
	}
	resolver, err := newResolver(config.Informers, config.Proxy.EndpointRouting, config.Generic.ExternalAddress)
	if err != nil {
		return nil, err
	}
	n.Network = remote.Network{
		Transports:      n.transports,
		Resolver:        resolver,
		Ejected:         remote.NewEjected(),
		Unreachable:     unreachable,
		FollowRedirects: config.Proxy.ForwardRedirects,
	}
	return n, nil
}

// newResolver returns the resolver of Services from core.
func newResolver(factory informers.SharedInformerFactory, endpointRouting bool, self string) (remote.Resolver, error) {
	services := factory.Core().V1().Services().Lister()
	resolver := remote.ClusterIPs(services)
	if endpointRouting {
		slices, err := serviceproxy.NewEndpointSliceIndexerGetter(factory.Discovery().V1().EndpointSlices())
		if err != nil {
			return nil, fmt.Errorf("watch endpointslices: %w", err)
		}
		resolver = remote.Endpoints(services, slices)
	}
	if self != "" {
		resolver = remote.Loopback(resolver, self)
	}
	return resolver, nil
}

func (n *network) backend(apiService *apiregistrationv1.APIService) *remote.Backend {
	return remote.New(apiService, n.Network)
}

// runCertificates reloads the client certificate when it changes.
func (n *network) runCertificates(ctx context.Context) {
	if n.certificates != nil {
		n.certificates.Run(ctx, 1)
	}
}

// registerMetrics registers aggregator_unavailable_apiservice and its counter once per process,
// because the registry is global.
var registerMetrics = sync.OnceValues(func() (*availabilitymetrics.Metrics, error) {
	metrics := availabilitymetrics.New()
	return metrics, metrics.Register(legacyregistry.Register, legacyregistry.CustomRegister)
})

func (n *network) newAvailability(config Config, informer apiregistrationinformers.APIServiceInformer, client apiregistrationclient.Interface) (*availability.Controller, error) {
	metrics, err := registerMetrics()
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return availability.New(availability.Config{
		APIServices: informer,
		Client:      client.ApiregistrationV1(),
		Informers:   config.Informers,
		Prober:      func(a *apiregistrationv1.APIService) availability.Prober { return n.backend(a) },
		Metrics:     metrics,
	})
}
