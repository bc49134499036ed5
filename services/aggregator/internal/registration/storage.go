// Package registration provides the API group of this tier, apiregistration.k8s.io: its storage
// ([APIGroup]) and its discovery ([Discovery]).
package registration

import (
	"fmt"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	storage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"triune.dev/services/aggregator/internal/scheme"
	"triune.dev/shared/server/resources"
	"triune.dev/shared/storage/etcdstore"
)

// APIGroup returns apiregistration.k8s.io/v1 with the storage of getter. v1beta1 can be decoded from
// storage but is not served, as in kube-apiserver since Kubernetes 1.22.
func APIGroup(getter generic.RESTOptionsGetter) *genericapiserver.APIGroupInfo {
	stored := etcdstore.StoredAs(getter, scheme.Codecs, apiregistrationv1.SchemeGroupVersion, v1beta1.SchemeGroupVersion)
	apiServices := storage.NewREST(scheme.Scheme, stored)
	info := genericapiserver.NewDefaultAPIGroupInfo(apiregistration.GroupName, scheme.Scheme, metav1.ParameterCodec, scheme.Codecs)
	info.VersionedResourcesStorageMap[apiregistrationv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"apiservices":        apiServices,
		"apiservices/status": storage.NewStatusREST(scheme.Scheme, apiServices),
	}
	info.PrioritizedVersions = []schema.GroupVersion{apiregistrationv1.SchemeGroupVersion}
	return &info
}

// Discovery returns the aggregated discovery of a group of the resource table.
func Discovery(group resources.Group) (apidiscoveryv2.APIGroupDiscovery, error) {
	described := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group.Name}}
	for _, version := range group.Versions {
		var list []metav1.APIResource
		for _, resource := range version.Resources() {
			list = append(list, resource.Discovery)
		}
		resources, err := endpoints.ConvertGroupVersionIntoToDiscovery(list)
		if err != nil {
			return described, fmt.Errorf("describe %s: %w", version.GroupVersion, err)
		}
		described.Versions = append(described.Versions, apidiscoveryv2.APIVersionDiscovery{
			Version:   version.Version,
			Resources: resources,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		})
	}
	return described, nil
}
