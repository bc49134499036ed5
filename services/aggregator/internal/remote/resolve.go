package remote

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Resolver resolves a port of a Service.
type Resolver interface {
	// Resolve returns at least one address ("host:port"), in the order to try them, or an
	// error. It is called for every request, must be fast and safe for concurrent use.
	Resolve(namespace, name string, port int32) ([]string, error)
}

// ClusterIPs resolves a Service to its cluster IP, where kube-proxy balances requests, and a
// Service of type ExternalName to its name and the port of the APIService. It cannot resolve
// headless Services.
func ClusterIPs(services corelisters.ServiceLister) Resolver {
	return resolverFunc(func(namespace, name string, port int32) ([]string, error) {
		location, err := serviceproxy.ResolveCluster(services, namespace, name, port)
		if err != nil {
			return nil, err
		}
		return []string{location.Host}, nil
	})
}

// Endpoints resolves a Service to its ready endpoints, in turn (--enable-aggregator-routing). It
// does not need kube-proxy. Like kube-apiserver, it refuses Services of type ExternalName.
func Endpoints(services corelisters.ServiceLister, slices serviceproxy.EndpointSliceGetter) Resolver {
	return &endpoints{services: services, slices: slices}
}

// Loopback resolves port 443 of the Service default/kubernetes to self, because other addresses may
// not work during start-up yet.
func Loopback(next Resolver, self string) Resolver {
	return resolverFunc(func(namespace, name string, port int32) ([]string, error) {
		if namespace == "default" && name == "kubernetes" && port == 443 {
			return []string{self}, nil
		}
		return next.Resolve(namespace, name, port)
	})
}

type resolverFunc func(namespace, name string, port int32) ([]string, error)

func (f resolverFunc) Resolve(namespace, name string, port int32) ([]string, error) {
	return f(namespace, name, port)
}

// FirstURL adapts a Resolver to upstream's interface for a single URL, with the first address.
type FirstURL struct{ Resolver }

// ResolveEndpoint returns the https URL of the first address.
func (u FirstURL) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	addresses, err := u.Resolve(namespace, name, port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: addresses[0]}, nil
}

type endpoints struct {
	services corelisters.ServiceLister
	slices   serviceproxy.EndpointSliceGetter

	mu     sync.Mutex
	starts map[string]uint32 // by "namespace/name"; guarded by mu
}

// maxStarts bounds starts, which includes Services of deleted APIServices. The map is cleared when
// it is full.
const maxStarts = 1024

func (e *endpoints) Resolve(namespace, name string, port int32) ([]string, error) {
	service, err := e.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	switch service.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	default:
		return nil, fmt.Errorf("unsupported service type %q", service.Spec.Type)
	}
	portName, err := portName(service, port)
	if err != nil {
		return nil, err
	}
	slices, err := e.slices.GetEndpointSlices(namespace, name)
	if err != nil {
		return nil, err
	}
	preferred, others := readyAddresses(service, slices, portName)
	if len(preferred)+len(others) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	turn := e.nextStart(namespace + "/" + name)
	return append(rotate(preferred, turn), rotate(others, turn)...), nil
}

// nextStart returns the next starting point for a Service. The first one is random, so that replicas
// of this tier do not use the same endpoint at the same time.
func (e *endpoints) nextStart(service string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, ok := e.starts[service]
	if !ok {
		if e.starts == nil || len(e.starts) >= maxStarts {
			e.starts = map[string]uint32{}
		}
		last = rand.Uint32()
	}
	e.starts[service] = last + 1
	return int((last + 1) & 0x7fffffff)
}

func portName(service *corev1.Service, port int32) (string, error) {
	for i := range service.Spec.Ports {
		if service.Spec.Ports[i].Port == port {
			return service.Spec.Ports[i].Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, service.Name))
}

// readyAddresses returns the addresses of ready endpoints, separately for the primary IP family of
// the Service.
func readyAddresses(service *corev1.Service, slices []*discoveryv1.EndpointSlice, portName string) (preferred, others []string) {
	for _, slice := range slices {
		port, ok := portNumber(slice, portName)
		if !ok {
			continue
		}
		into := &others
		if len(service.Spec.IPFamilies) == 0 || slice.AddressType == discoveryv1.AddressType(service.Spec.IPFamilies[0]) {
			into = &preferred
		}
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			// A nil condition means ready (KEP-752).
			if ready := endpoint.Conditions.Ready; (ready != nil && !*ready) || len(endpoint.Addresses) == 0 {
				continue
			}
			// Only the first address of an endpoint is used.
			*into = append(*into, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(port))))
		}
	}
	return preferred, others
}

func portNumber(slice *discoveryv1.EndpointSlice, portName string) (int32, bool) {
	for _, port := range slice.Ports {
		if port.Name != nil && *port.Name == portName && port.Port != nil {
			return *port.Port, true
		}
	}
	return 0, false
}

func rotate(addresses []string, turn int) []string {
	if len(addresses) < 2 {
		return addresses
	}
	at := turn % len(addresses)
	return append(append(make([]string, 0, len(addresses)), addresses[at:]...), addresses[:at]...)
}

// errUnresolved wraps errors of a Resolver: they are logged, and the client only gets "service
// unavailable".
var errUnresolved = errors.New("resolve the service")
