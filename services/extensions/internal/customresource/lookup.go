package customresource

import (
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// lookup returns the row of the CRD that serves the request. If there is none it returns
// nil, and the response is 404 whatever the method.
func lookup(t *table, info *apirequest.RequestInfo) *row {
	r := t.get(info.Resource + "." + info.APIGroup)
	if r == nil || !answers(r.crd, info) {
		return nil
	}
	return r
}

// answers reports whether crd serves the path of the request: its names are accepted, or
// were when it was established, the version is served, and the scope matches.
func answers(crd *apiextensionsv1.CustomResourceDefinition, info *apirequest.RequestInfo) bool {
	return inScope(crd, info) &&
		apihelpers.HasServedCRDVersion(crd, info.APIVersion) &&
		(apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established))
}

// inScope reports whether the request matches the scope of crd. Namespaced objects may be
// listed and watched in all namespaces.
func inScope(crd *apiextensionsv1.CustomResourceDefinition, info *apirequest.RequestInfo) bool {
	if crd.Spec.Scope != apiextensionsv1.NamespaceScoped {
		return info.Namespace == ""
	}
	return info.Namespace != "" || info.Verb == "list" || info.Verb == "watch"
}

// endpoint is one of the paths of a custom resource.
type endpoint int

const (
	noEndpoint endpoint = iota
	resourceEndpoint
	statusEndpoint
	scaleEndpoint
)

// endpointOf returns the endpoint of the request, noEndpoint if the version lacks the
// subresource.
func endpointOf(crd *apiextensionsv1.CustomResourceDefinition, info *apirequest.RequestInfo) endpoint {
	if info.Subresource == "" {
		return resourceEndpoint
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		switch {
		case v.Name != info.APIVersion:
		case info.Subresource == "status" && hasStatus(v):
			return statusEndpoint
		case info.Subresource == "scale" && hasScale(v):
			return scaleEndpoint
		}
	}
	return noEndpoint
}
