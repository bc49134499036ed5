package resources

import (
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
)

// patchTypes returns the media types of PATCH.
func patchTypes() []string {
	patches := []string{
		string(types.JSONPatchType),
		string(types.MergePatchType),
		string(types.StrategicMergePatchType),
		string(types.ApplyYAMLPatchType),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		patches = append(patches, string(types.ApplyCBORPatchType))
	}
	return patches
}

// mediaTypes returns the media types that a route consumes and produces. If it returns no
// consumed types, the choice is the handler's.
func (b resourceBuilder) mediaTypes(can capabilities, route *Route) (consumes, produces []string) {
	single, stream := negotiation.MediaTypesForSerializer(b.version.Serializer)
	switch route.Verb {
	case request.MethodConnect:
		return nil, []string{"*/*"}
	case request.MethodPatch:
		consumes = patchTypes()
	}
	produces = append(can.produces(route.Verb), single...)
	switch route.Verb {
	case request.MethodList, request.MethodWatch, request.MethodWatchList:
		produces = append(produces, stream...)
	}
	return consumes, produces
}

// handler returns the handler of a route: k8s.io/apiserver's for the verb, with request metrics
// and the warnings of a deprecated version.
func (b resourceBuilder) handler(r *Resource, can capabilities, route *Route) http.HandlerFunc {
	handle := b.verb(r, can, route)
	if warnings := r.deprecated.warnings; len(warnings) > 0 {
		inner := handle
		handle = func(w http.ResponseWriter, req *http.Request) {
			for _, text := range warnings {
				warning.AddWarning(req.Context(), "", text)
			}
			inner(w, req)
		}
	}
	verb := route.Verb
	if can.metricsOverride != nil && verb == request.MethodGet {
		verb = can.metricsOverride.OverrideMetricsVerb(verb)
	}
	return metrics.InstrumentHandlerFunc(verb, b.version.Group, b.version.Version, r.Name, r.Subresource,
		route.MetricsScope, metrics.APIServerComponent, r.deprecated.is, r.deprecated.removed, handle)
}

func (b resourceBuilder) verb(r *Resource, can capabilities, route *Route) http.HandlerFunc {
	switch route.Verb {
	case request.MethodGet:
		if can.takesOptions() {
			return handlers.GetResourceWithOptions(can.getterWithOptions, &r.scope, r.Subresource != "")
		}
		get := handlers.GetResource(can.getter, &r.scope)
		if r.reads != nil {
			get = r.reads.Get(get)
		}
		return get
	case request.MethodList:
		if r.list == nil {
			r.list = b.collection(r, can, false)
		}
		return r.list
	case request.MethodWatch, request.MethodWatchList:
		if r.watch == nil {
			r.watch = b.collection(r, can, true)
		}
		return r.watch
	}
	if b.write(r, can, route) == nil {
		panic("resources: no handler for verb " + route.Verb)
	}
	// These handlers wrap their admission on each request and keep the result, so each one
	// serves a single request.
	return func(w http.ResponseWriter, req *http.Request) { b.write(r, can, route)(w, req) }
}

// write returns a handler for one request with admission, or nil if the verb needs none.
func (b resourceBuilder) write(r *Resource, can capabilities, route *Route) http.HandlerFunc {
	scope, admit := &r.scope, b.config.Admission
	switch route.Verb {
	case request.MethodPost:
		if can.namedCreater != nil {
			return handlers.CreateNamedResource(can.namedCreater, scope, admit)
		}
		return handlers.CreateResource(can.creater, scope, admit)
	case request.MethodPut:
		return handlers.UpdateResource(can.updater, scope, admit)
	case request.MethodPatch:
		return handlers.PatchResource(can.patcher, scope, admit, route.Consumes)
	case request.MethodDelete:
		return handlers.DeleteResource(can.deleter, true, scope, admit)
	case request.MethodDeleteCollection:
		return handlers.DeleteCollection(can.collectionDeleter, true, scope, admit)
	case request.MethodConnect:
		return handlers.ConnectResource(can.connecter, scope, admit, r.Key(), r.Subresource != "")
	}
	return nil
}

// collection returns the handler of LIST and WATCH, or of WATCH alone.
func (b resourceBuilder) collection(r *Resource, can capabilities, watch bool) http.HandlerFunc {
	handler := handlers.ListResource(can.lister, can.watcher, &r.scope, watch, b.config.MinRequestTimeout)
	if r.reads == nil || can.watcher == nil {
		return handler
	}
	return r.reads.ListAndWatch(b.config.MinRequestTimeout, watch, handler)
}
