package resources

import (
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

var accessor = meta.NewAccessor()

// Route is one verb of a resource at one level.
type Route struct {
	// Verb is a verb such as request.MethodGet, MethodList or MethodWatchList, and Method the
	// HTTP method.
	Verb, Method string
	// Path is the template of the path below the root of the group-version:
	// "namespaces/{namespace}/pods/{name}". A trailing "{path:*}" matches the rest.
	Path  string
	Level Level
	// WatchPrefix marks the deprecated paths with the prefix watch/.
	WatchPrefix bool
	// MetricsScope is the scope label of kube-apiserver's request metrics: "cluster",
	// "namespace" or "resource".
	MetricsScope string
	Media
	// Handler serves the request, whose context must have the request info.
	Handler http.HandlerFunc
}

// discoveryVerb returns the verb in discovery documents, or "" for connects by a method without
// one.
func (r *Route) discoveryVerb() string {
	switch r.Verb {
	case request.MethodList:
		return "list"
	case request.MethodWatch, request.MethodWatchList:
		return "watch"
	case request.MethodDeleteCollection:
		return "deletecollection"
	}
	switch r.Method {
	case http.MethodGet:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// capabilities holds the interfaces that a storage implements.
type capabilities struct {
	creater            rest.Creater
	namedCreater       rest.NamedCreater
	lister             rest.Lister
	watcher            rest.Watcher
	getter             rest.Getter
	getterWithOptions  rest.GetterWithOptions
	deleter            rest.GracefulDeleter
	collectionDeleter  rest.CollectionDeleter
	updater            rest.Updater
	patcher            rest.Patcher
	connecter          rest.Connecter
	metricsOverride    endpoints.StorageMetricsOverride
	metadata           rest.StorageMetadata
	getSubpath         bool
	connectSubpath     bool
	connectHTTPMethods []string
}

func capabilitiesOf(storage rest.Storage) capabilities {
	var c capabilities
	c.creater, _ = storage.(rest.Creater)
	c.namedCreater, _ = storage.(rest.NamedCreater)
	c.lister, _ = storage.(rest.Lister)
	c.watcher, _ = storage.(rest.Watcher)
	c.getter, _ = storage.(rest.Getter)
	c.getterWithOptions, _ = storage.(rest.GetterWithOptions)
	c.deleter, _ = storage.(rest.GracefulDeleter)
	c.collectionDeleter, _ = storage.(rest.CollectionDeleter)
	c.updater, _ = storage.(rest.Updater)
	c.patcher, _ = storage.(rest.Patcher)
	c.connecter, _ = storage.(rest.Connecter)
	c.metricsOverride, _ = storage.(endpoints.StorageMetricsOverride)
	c.metadata, _ = storage.(rest.StorageMetadata)
	if c.getterWithOptions != nil {
		_, c.getSubpath, _ = c.getterWithOptions.NewGetOptions()
	}
	if c.connecter != nil {
		_, c.connectSubpath, _ = c.connecter.NewConnectOptions()
		c.connectHTTPMethods = c.connecter.ConnectMethods()
	}
	return c
}

func (c capabilities) canCreate() bool { return c.creater != nil || c.namedCreater != nil }
func (c capabilities) canGet() bool    { return c.getter != nil || c.getterWithOptions != nil }

// routes returns the routes of a resource, in the order in which OpenAPI documents list them.
func (b resourceBuilder) routes(r *Resource) []*Route {
	can := capabilitiesOf(r.Storage)
	paths := pathsOf(r)
	var routes []*Route
	add := func(when bool, verb, method, path string, level Level) {
		if when {
			routes = append(routes, &Route{Verb: verb, Method: method, Path: path, Level: level})
		}
	}
	// A subresource has no collection; its creater works at the item.
	collection := Collection
	if r.Subresource != "" {
		collection = Item
	}
	watchList := can.lister != nil && can.watcher != nil
	add(can.lister != nil, request.MethodList, http.MethodGet, paths.collection, collection)
	add(can.canCreate(), request.MethodPost, http.MethodPost, paths.collection, collection)
	add(can.collectionDeleter != nil, request.MethodDeleteCollection, http.MethodDelete, paths.collection, collection)
	add(watchList, request.MethodWatchList, http.MethodGet, "watch/"+paths.collection, collection)
	add(can.canGet(), request.MethodGet, http.MethodGet, paths.item, Item)
	add(can.canGet() && can.getSubpath, request.MethodGet, http.MethodGet, paths.item+"/{path:*}", ItemPath)
	add(can.updater != nil, request.MethodPut, http.MethodPut, paths.item, Item)
	add(can.patcher != nil, request.MethodPatch, http.MethodPatch, paths.item, Item)
	add(can.deleter != nil, request.MethodDelete, http.MethodDelete, paths.item, Item)
	add(can.watcher != nil, request.MethodWatch, http.MethodGet, "watch/"+paths.item, Item)
	for _, method := range can.connectHTTPMethods {
		add(true, request.MethodConnect, method, paths.item, Item)
	}
	for _, method := range can.connectHTTPMethods {
		add(can.connectSubpath, request.MethodConnect, method, paths.item+"/{path:*}", ItemPath)
	}
	if r.Namespaced && r.Subresource == "" {
		add(can.lister != nil, request.MethodList, http.MethodGet, r.Name, AllNamespaces)
		add(watchList, request.MethodWatchList, http.MethodGet, "watch/"+r.Name, AllNamespaces)
	}
	for _, route := range routes {
		route.WatchPrefix = route.Verb == request.MethodWatch || route.Verb == request.MethodWatchList
		route.MetricsScope = metricsScope(r, route)
		route.Consumes, route.Produces = b.mediaTypes(can, route)
		route.Handler = b.handler(r, can, route)
	}
	return routes
}

type resourcePaths struct{ collection, item string }

func pathsOf(r *Resource) resourcePaths {
	paths := resourcePaths{collection: r.Name}
	if r.Namespaced {
		paths.collection = "namespaces/{namespace}/" + r.Name
	}
	paths.item = paths.collection + "/{name}"
	if r.Subresource != "" {
		paths.item += "/" + r.Subresource
		paths.collection = paths.item
	}
	return paths
}

func metricsScope(r *Resource, route *Route) string {
	switch {
	case route.Level == AllNamespaces:
		return "cluster"
	case route.Level == Item, route.Level == ItemPath, route.Verb == request.MethodPost:
		return "resource"
	case r.Namespaced:
		return "namespace"
	}
	return "cluster"
}

// takesOptions reports whether GETs of the storage take their own options.
func (c capabilities) takesOptions() bool { return c.getterWithOptions != nil }

// produces returns the additional media types of this storage for a verb, such as text/plain
// for pod logs.
func (c capabilities) produces(verb string) []string {
	if c.metadata == nil {
		return nil
	}
	return slices.Clone(c.metadata.ProducesMIMETypes(verb))
}
