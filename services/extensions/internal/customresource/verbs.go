package customresource

import (
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// patchTypes are the media types that PATCH takes. There is no strategic merge
// patch for custom resources: a CRD has no Go type to read the strategy from.
func patchTypes() []string {
	patches := []string{
		string(types.JSONPatchType),
		string(types.MergePatchType),
		string(types.ApplyYAMLPatchType),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		patches = append(patches, string(types.ApplyCBORPatchType))
	}
	return patches
}

// verbs maps the verb of a request to its handler.
type verbs struct {
	admission admission.Interface
}

// resource returns the handler for the objects themselves, or nil for a verb they
// do not have. A verb that can create (apply can) takes creating; the others take
// the plain admission.
func (v verbs) resource(verb string, reads *version, of *endpoints, creating admission.Interface) http.HandlerFunc {
	storage, scope := of.storage.CustomResource, of.resource
	switch verb {
	case "get":
		return reads.get
	case "list":
		return reads.list
	case "watch":
		return reads.watch
	case "create":
		return handlers.CreateResource(storage, scope, creating)
	case "update":
		return handlers.UpdateResource(storage, scope, v.admission)
	case "patch":
		return handlers.PatchResource(storage, scope, creating, patchTypes())
	case "delete":
		return handlers.DeleteResource(storage, true, scope, v.admission)
	case "deletecollection":
		return handlers.DeleteCollection(storage, true, scope, v.admission)
	}
	return nil
}

// subresource returns the handler for status or scale, or nil for a verb they do
// not have.
func (v verbs) subresource(verb string, storage rest.Patcher, scope *handlers.RequestScope) http.HandlerFunc {
	switch verb {
	case "get":
		return handlers.GetResource(storage, scope)
	case "update":
		return handlers.UpdateResource(storage, scope, v.admission)
	case "patch":
		return handlers.PatchResource(storage, scope, v.admission, patchTypes())
	}
	return nil
}
