package extensions

import (
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// newServices finds webhooks that are given as Services, as kube-apiserver does:
// by cluster IP, or by endpoint where the server cannot reach cluster IPs.
func newServices(from informers.SharedInformerFactory, byEndpoint bool) (webhook.ServiceResolver, error) {
	services := from.Core().V1().Services().Lister()
	if !byEndpoint {
		return clusterIPs{services}, nil
	}
	slices, err := proxy.NewEndpointSliceIndexerGetter(from.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, err
	}
	return endpoints{services: services, slices: slices}, nil
}

type clusterIPs struct{ services corelisters.ServiceLister }

func (r clusterIPs) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(r.services, namespace, name, port)
}

type endpoints struct {
	services corelisters.ServiceLister
	slices   proxy.EndpointSliceGetter
}

func (r endpoints) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
}
