package availability

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	corelisters "k8s.io/client-go/listers/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// retryProbes is the number of concurrent probes after a failed one.
const retryProbes = 4

// Prober probes one address of an APIService's server. Each call may choose another address.
type Prober interface {
	Probe(ctx context.Context) error
}

// checker determines the condition of APIServices.
type checker struct {
	services corelisters.ServiceLister
	slices   serviceproxy.EndpointSliceGetter
	prober   func(*apiregistrationv1.APIService) Prober
}

// condition returns the current condition of a remote APIService.
func (c *checker) condition(ctx context.Context, apiService *apiregistrationv1.APIService) apiregistrationv1.APIServiceCondition {
	found := apiregistrationv1.APIServiceCondition{
		Type:               apiregistrationv1.Available,
		Status:             apiregistrationv1.ConditionTrue,
		LastTransitionTime: metav1.Now(),
		Reason:             "Passed",
		Message:            "all checks passed",
	}
	if problem := c.problem(ctx, apiService); problem != nil {
		found.Status, found.Reason, found.Message = problem.status, problem.reason, problem.message
	}
	return found
}

type problem struct {
	status          apiregistrationv1.ConditionStatus
	reason, message string
}

func unavailable(reason, format string, args ...any) *problem {
	return &problem{status: apiregistrationv1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

func unknown(reason, format string, args ...any) *problem {
	return &problem{status: apiregistrationv1.ConditionUnknown, reason: reason, message: fmt.Sprintf(format, args...)}
}

// problem returns the first problem found, or nil.
func (c *checker) problem(ctx context.Context, apiService *apiregistrationv1.APIService) *problem {
	reference := apiService.Spec.Service
	service, err := c.services.Services(reference.Namespace).Get(reference.Name)
	switch {
	case apierrors.IsNotFound(err):
		return unavailable("ServiceNotFound", "service/%s in %q is not present", reference.Name, reference.Namespace)
	case err != nil:
		return unknown("ServiceAccessError", "service/%s in %q cannot be checked due to: %v", reference.Name, reference.Namespace, err)
	}
	if service.Spec.Type == corev1.ServiceTypeClusterIP {
		if problem := c.endpoints(reference, service); problem != nil {
			return problem
		}
	}
	if err := c.probe(ctx, apiService); err != nil {
		return unavailable("FailedDiscoveryCheck", "%s", err.Error())
	}
	return nil
}

// endpoints checks that the port has an endpoint. Other types of Services may work without one.
func (c *checker) endpoints(reference *apiregistrationv1.ServiceReference, service *corev1.Service) *problem {
	number := int32(443)
	if reference.Port != nil {
		number = *reference.Port
	}
	at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number })
	if at < 0 {
		return unavailable("ServicePortError", "service/%s in %q is not listening on port %d", reference.Name, reference.Namespace, number)
	}
	name := service.Spec.Ports[at].Name
	all, err := c.slices.GetEndpointSlices(reference.Namespace, reference.Name)
	switch {
	case err != nil:
		return unknown("EndpointsAccessError", "service/%s in %q cannot be checked due to: %v", reference.Name, reference.Namespace, err)
	case len(all) == 0:
		return unavailable("EndpointsNotFound", "cannot find endpointslices for service/%s in %q", reference.Name, reference.Namespace)
	case !slices.ContainsFunc(all, func(s *discoveryv1.EndpointSlice) bool { return hasEndpoint(s, name) }):
		return unavailable("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", reference.Name, reference.Namespace, name)
	}
	return nil
}

func hasEndpoint(slice *discoveryv1.EndpointSlice, port string) bool {
	ready := slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready)
	})
	return ready && slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == port && p.Port != nil })
}

// probe returns nil if any probe succeeds, and otherwise the last error.
func (c *checker) probe(ctx context.Context, apiService *apiregistrationv1.APIService) error {
	prober := c.prober(apiService)
	if prober.Probe(ctx) == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, retryProbes)
	for range retryProbes {
		go func() { results <- prober.Probe(ctx) }()
	}
	var last error
	answered := false
	for range retryProbes {
		if err := <-results; err == nil {
			answered = true
			cancel()
		} else if !answered {
			last = err
		}
	}
	if answered {
		return nil
	}
	return last
}

// localCondition returns the condition of an APIService without a Service.
func localCondition() apiregistrationv1.APIServiceCondition {
	return apiregistrationhelper.NewLocalAvailableAPIServiceCondition()
}
