package discovery

import (
	"encoding/json"
	"errors"
	"fmt"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/client-go/discovery"
)

// acceptAggregated is the Accept header for aggregated discovery, newest version first.
const acceptAggregated = discovery.AcceptV2 + "," + discovery.AcceptV2Beta1

// errNotAggregated means that the server answered in the older form and does not support
// aggregated discovery.
var errNotAggregated = errors.New("not an aggregated discovery document")

// parseAggregated decodes an aggregated document of either version.
func parseAggregated(contentType string, body []byte) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	kind := schema.GroupVersionKind{Group: "apidiscovery.k8s.io", Version: "v2", Kind: "APIGroupDiscoveryList"}
	v2, _ := discovery.ContentTypeIsGVK(contentType, kind)
	kind.Version = "v2beta1"
	v2beta1, _ := discovery.ContentTypeIsGVK(contentType, kind)
	if !v2 && !v2beta1 {
		return nil, errNotAggregated
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	if err := runtime.DecodeInto(codecs.UniversalDecoder(), body, list); err != nil {
		return nil, fmt.Errorf("decode aggregated discovery: %w", err)
	}
	for _, group := range list.Items {
		for _, v := range group.Versions {
			fillKinds(v.Resources)
		}
	}
	return list.Items, nil
}

// fillKinds sets missing kinds of resources to empty ones: client-go v0.26.0 to v0.26.3
// dereferences them without a check (kubernetes issue 118361).
func fillKinds(resources []apidiscoveryv2.APIResourceDiscovery) {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if resources[i].Subresources[j].ResponseKind == nil {
				resources[i].Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// parseLegacy decodes the APIResourceList of a group-version.
func parseLegacy(version string, body []byte) (apidiscoveryv2.APIVersionDiscovery, error) {
	list := &metav1.APIResourceList{}
	if err := json.Unmarshal(body, list); err != nil {
		return apidiscoveryv2.APIVersionDiscovery{}, fmt.Errorf("decode discovery: %w", err)
	}
	resources, err := endpoints.ConvertGroupVersionIntoToDiscovery(list.APIResources)
	if err != nil {
		return apidiscoveryv2.APIVersionDiscovery{}, fmt.Errorf("convert discovery: %w", err)
	}
	return apidiscoveryv2.APIVersionDiscovery{Version: version, Resources: resources}, nil
}

// groupVersionPath returns the discovery path of a group-version.
func groupVersionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}
