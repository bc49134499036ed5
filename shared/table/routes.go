package table

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
	// Verb is one of request.MethodGet, MethodList, MethodWatchList and so on;
	// Method is the HTTP method.
	Verb, Method string
	// Path is the template below the group-version's root:
	// "namespaces/{namespace}/pods/{name}". A trailing "{path:*}" takes the rest.
	Path  string
	Level Level
	// WatchPrefix marks the deprecated watch/ form.
	WatchPrefix bool
	// MetricsScope is "cluster", "namespace" or "resource", the scope label of
	// kube-apiserver's request metrics.
	MetricsScope string
	Media
	// Handler answers the request; request info must be in its context.
	Handler http.HandlerFunc
}

// discoveryVerb is the verb of the authorization API that the route offers; ""
// for connects by methods that have none.
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

// capabilities is what a storage can do, by the interfaces it implements.
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

// routes enumerates the verbs of a resource. The order is that in which the
// routes appear in OpenAPI documents.
func (b resourceBuilder) routes(r *Resource) []*Route {
	can := capabilitiesOf(r.Storage)
	paths := pathsOf(r)
	var routes []*Route
	add := func(when bool, verb, method, path string, level Level) {
		if when {
			routes = append(routes, &Route{Verb: verb, Method: method, Path: path, Level: level})
		}
	}
	// A subresource has no collection of its own: what creates does so at the item.
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

// takesOptions tells whether GETs of the storage take options of their own.
func (c capabilities) takesOptions() bool { return c.getterWithOptions != nil }

// produces returns the media types that only this storage produces for a verb,
// such as the text/plain of pod logs.
func (c capabilities) produces(verb string) []string {
	if c.metadata == nil {
		return nil
	}
	return slices.Clone(c.metadata.ProducesMIMETypes(verb))
}
