package openapi

import (
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kube-openapi/pkg/common"

	"triune.dev/shared/server/resources"
)

const prettyDescription = "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."

// Deprecation notes of the watch paths.
const (
	insteadOfWatchList = ". deprecated: use the 'watch' parameter with a list operation instead."
	insteadOfWatch     = ". deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter."
)

// statuses maps each verb to the status codes of success.
var statuses = map[string][]int{
	request.MethodGet:              {http.StatusOK},
	request.MethodList:             {http.StatusOK},
	request.MethodPut:              {http.StatusOK, http.StatusCreated},
	request.MethodPatch:            {http.StatusOK, http.StatusCreated},
	request.MethodPost:             {http.StatusOK, http.StatusCreated, http.StatusAccepted},
	request.MethodDelete:           {http.StatusOK, http.StatusAccepted},
	request.MethodDeleteCollection: {http.StatusOK},
	request.MethodWatch:            {http.StatusOK},
	request.MethodWatchList:        {http.StatusOK},
}

// operation describes one route of a resource of the table.
type operation struct {
	version  *resources.GroupVersion
	resource *resources.Resource
	route    *resources.Route
	samples  *samples
	options  optionParameters
}

func (o operation) describe() (*route, error) {
	r := &route{
		method:      o.route.Method,
		path:        o.version.Root + "/" + o.route.Path,
		operation:   o.name(),
		description: o.description(),
		consumes:    o.route.Consumes,
		produces:    o.route.Produces,
		metadata: map[string]any{
			endpoints.RouteMetaAction: strings.ToLower(o.route.Verb),
			endpoints.RouteMetaGVK:    metav1.GroupVersionKind(o.resource.Kind),
		},
	}
	if len(r.consumes) == 0 {
		r.consumes = []string{"*/*"}
	}
	if err := o.bodies(r); err != nil {
		return nil, err
	}
	for _, code := range statuses[o.route.Verb] {
		r.responses = append(r.responses, response{code, http.StatusText(code), r.writes})
	}
	r.parameters = append(r.parameters, o.pathParameters()...)
	return r, nil
}

// kind returns the kind used in names and texts: for a subresource, that of its parent.
func (o operation) kind() string { return o.resource.ParentKind.Kind }

// name returns the name of the operation without the group-version, such as
// readNamespacedPodStatus.
func (o operation) name() string {
	var b strings.Builder
	b.WriteString(map[string]string{
		request.MethodGet:              "read",
		request.MethodList:             "list",
		request.MethodPut:              "replace",
		request.MethodPatch:            "patch",
		request.MethodPost:             "create",
		request.MethodDelete:           "delete",
		request.MethodDeleteCollection: "deletecollection",
		request.MethodWatch:            "watch",
		request.MethodWatchList:        "watch",
		request.MethodConnect:          "connect" + capitalized(strings.ToLower(o.route.Method)),
	}[o.route.Verb])
	if o.resource.Namespaced && o.route.Level != resources.AllNamespaces {
		b.WriteString("Namespaced")
	}
	b.WriteString(o.kind())
	b.WriteString(capitalized(o.resource.Subresource))
	if o.route.Verb == request.MethodWatchList {
		b.WriteString("List")
	}
	switch o.route.Level {
	case resources.ItemPath:
		b.WriteString("WithPath")
	case resources.AllNamespaces:
		b.WriteString("ForAllNamespaces")
	}
	return b.String()
}

func capitalized(word string) string {
	if word == "" {
		return ""
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

func (o operation) description() string {
	part := "" // such as "status of "
	if o.resource.Subresource != "" {
		part = o.resource.Subresource + " of "
	}
	a := endpoints.GetArticleForNoun(o.kind(), " ")[1:] // "a ", "an " or, before a plural, ""
	switch o.route.Verb {
	case request.MethodGet:
		return "read " + part + "the specified " + o.kind()
	case request.MethodList:
		if o.samples.watchEvent != nil {
			return "list or watch " + part + "objects of kind " + o.kind()
		}
		return "list " + part + "objects of kind " + o.kind()
	case request.MethodPut:
		return "replace " + part + "the specified " + o.kind()
	case request.MethodPatch:
		return "partially update " + part + "the specified " + o.kind()
	case request.MethodPost:
		return "create " + part + a + o.kind()
	case request.MethodDelete:
		return "delete " + part + a + o.kind()
	case request.MethodDeleteCollection:
		if part != "" {
			part += "a "
		}
		return "delete collection of " + part + o.kind()
	case request.MethodWatch:
		return "watch changes to " + part + "an object of kind " + o.kind() + insteadOfWatch
	case request.MethodWatchList:
		return "watch individual changes to a list of " + part + o.kind() + insteadOfWatchList
	case request.MethodConnect:
		return "connect " + o.route.Method + " requests to " + part + o.kind()
	}
	return ""
}

// bodies sets the request and response bodies of a route, and its query parameters.
func (o operation) bodies(r *route) error {
	s := o.samples
	query := func(parameters ...common.Parameter) { r.parameters = append(r.parameters, parameters...) }
	body := func(sample any, required bool) {
		r.reads = sample
		query(bodyParameter(required))
	}
	if o.route.Verb != request.MethodConnect {
		query(queryParameter("pretty", prettyDescription, "string"))
	}
	switch o.route.Verb {
	case request.MethodGet:
		r.writes = s.produced(request.MethodGet)
		if s.getOptions != nil {
			query(o.options.forType(s.getOptions)...)
		}
	case request.MethodList:
		r.writes = s.list
		query(o.options.forType(s.listOptions)...)
	case request.MethodPut:
		r.writes = s.produced(request.MethodPut)
		body(s.object, true)
		query(o.options.forType(s.updateOptions)...)
	case request.MethodPatch:
		r.writes = s.produced(request.MethodPatch)
		body(metav1.Patch{}, true)
		query(o.options.forType(s.patchOptions)...)
	case request.MethodPost:
		r.writes = s.produced(request.MethodPost)
		body(s.object, true)
		query(o.options.forType(s.createOptions)...)
	case request.MethodDelete:
		r.writes = s.deleted()
		body(s.deleteOptions, false)
		query(o.options.forType(s.deleteOptions)...)
	case request.MethodDeleteCollection:
		r.writes = s.status
		body(s.deleteOptions, false)
		query(o.options.forType(s.deleteOptions)...)
		query(o.options.forType(s.listOptions, "watch", "allowWatchBookmarks")...)
	case request.MethodWatch, request.MethodWatchList:
		r.writes = s.watchEvent
		query(o.options.forType(s.listOptions)...)
	case request.MethodConnect:
		r.writes = s.connected(o.route.Method)
		if s.connectOptions != nil {
			query(o.options.forType(s.connectOptions)...)
		}
	default:
		return fmt.Errorf("describe %s: unknown verb %q", r.path, o.route.Verb)
	}
	return nil
}

func (o operation) pathParameters() []common.Parameter {
	var parameters []common.Parameter
	if strings.Contains(o.route.Path, "{namespace}") {
		parameters = append(parameters, pathParameter("namespace", "object name and auth scope, such as for teams and projects"))
	}
	if strings.Contains(o.route.Path, "{name}") {
		parameters = append(parameters, pathParameter("name", "name of the "+o.resource.Kind.Kind))
	}
	if o.route.Level == resources.ItemPath {
		parameters = append(parameters, pathParameter("path", "path to the resource"))
	}
	return parameters
}
