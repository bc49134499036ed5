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

// patchTypes returns the media types of PATCH. Custom resources have no strategic merge
// patch, since they have no Go type with the strategy.
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

// resource returns the handler of a verb for the objects themselves, nil if they lack the
// verb. creating is the admission of verbs that can create, which includes apply.
func (v verbs) resource(verb string, reads *version, e *endpoints, creating admission.Interface) http.HandlerFunc {
	storage, scope := e.storage.CustomResource, e.resource
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

// subresource returns the handler of a verb for status or scale, nil if they lack the verb.
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
