package customresource

import (
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// lookup finds the row whose CRD answers the request, or nil: then the path does
// not exist and is 404, whatever the method.
func lookup(t *table, info *apirequest.RequestInfo) *row {
	r := t.get(info.Resource + "." + info.APIGroup)
	if r == nil || !answers(r.crd, info) {
		return nil
	}
	return r
}

// answers tells whether crd has the path of the request: its names are accepted
// (or were, when it was established), the version is served, and the request is
// made in the CRD's scope.
func answers(crd *apiextensionsv1.CustomResourceDefinition, info *apirequest.RequestInfo) bool {
	return inScope(crd, info) &&
		apihelpers.HasServedCRDVersion(crd, info.APIVersion) &&
		(apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established))
}

// inScope: cluster-scoped objects are in no namespace; namespaced ones are in
// one, but may be listed and watched across all.
func inScope(crd *apiextensionsv1.CustomResourceDefinition, info *apirequest.RequestInfo) bool {
	if crd.Spec.Scope != apiextensionsv1.NamespaceScoped {
		return info.Namespace == ""
	}
	return info.Namespace != "" || info.Verb == "list" || info.Verb == "watch"
}

// endpoint is which of the paths of a custom resource a request is for.
type endpoint int

const (
	noEndpoint endpoint = iota
	resourceEndpoint
	statusEndpoint
	scaleEndpoint
)

// endpointOf returns noEndpoint for a subresource that the version lacks.
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
