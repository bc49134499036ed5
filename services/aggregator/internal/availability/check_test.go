package availability

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type endpointSlices struct {
	all []*discoveryv1.EndpointSlice
	err error
}

func (s endpointSlices) GetEndpointSlices(string, string) ([]*discoveryv1.EndpointSlice, error) {
	return s.all, s.err
}

// proberFunc is called with the number of the call, starting at 1.
type proberFunc func(call int32) error

type counting struct {
	calls atomic.Int32
	f     proberFunc
}

func (c *counting) Probe(context.Context) error { return c.f(c.calls.Add(1)) }

func slice(port string, ready *bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: &port, Port: ptr.To[int32](8443)}}}
	for _, address := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}})
	}
	return s
}

// Reasons and messages are those of kube-aggregator.
func TestCondition(t *testing.T) {
	clusterIP := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}
	good := endpointSlices{all: []*discoveryv1.EndpointSlice{slice("https", nil, "10.0.0.1")}}
	answers := func(int32) error { return nil }
	refuses := func(call int32) error { return fmt.Errorf("refused %d", call) }
	tests := []struct {
		name    string
		service *corev1.ServiceSpec
		slices  endpointSlices
		probe   proberFunc
		want    string
		probes  int32
	}{
		{"answers", &clusterIP, good, answers, `True Passed: all checks passed`, 1},
		{"no Service", nil, good, answers, `False ServiceNotFound: service/s in "ns" is not present`, 0},
		{"another port", &corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}, good, answers, `False ServicePortError: service/s in "ns" is not listening on port 443`, 0},
		{"EndpointSlices unknown", &clusterIP, endpointSlices{err: errors.New("broken")}, answers, `Unknown EndpointsAccessError: service/s in "ns" cannot be checked due to: broken`, 0},
		{"no EndpointSlice", &clusterIP, endpointSlices{}, answers, `False EndpointsNotFound: cannot find endpointslices for service/s in "ns"`, 0},
		{"no endpoint ready", &clusterIP, endpointSlices{all: []*discoveryv1.EndpointSlice{slice("https", ptr.To(false), "10.0.0.1")}}, answers,
			`False MissingEndpoints: endpointslices for service/s in "ns" have no addresses with port name "https"`, 0},
		{"no endpoint with the port", &clusterIP, endpointSlices{all: []*discoveryv1.EndpointSlice{slice("http", nil, "10.0.0.1")}}, answers,
			`False MissingEndpoints: endpointslices for service/s in "ns" have no addresses with port name "https"`, 0},
		{"other types need no endpoints", &corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}, endpointSlices{}, answers, `True Passed: all checks passed`, 1},
		{"one replica of many is down", &clusterIP, good, func(call int32) error {
			if call < 4 {
				return errors.New("refused")
			}
			return nil
		}, `True Passed: all checks passed`, 5},
		{"refuses", &clusterIP, good, refuses, `False FailedDiscoveryCheck: refused`, 5},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			if test.service != nil {
				indexer.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: *test.service})
			}
			prober := &counting{f: test.probe}
			c := checker{
				services: corelisters.NewServiceLister(indexer),
				slices:   test.slices,
				prober:   func(*apiregistrationv1.APIService) Prober { return prober },
			}
			found := c.condition(t.Context(), &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "s"},
			}})
			got := fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
			if test.name == "refuses" {
				got = got[:len(test.want)] // any of the attempts may be the last one
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if calls := prober.calls.Load(); calls != test.probes {
				t.Errorf("asked %d times, want %d", calls, test.probes)
			}
		})
	}
}
