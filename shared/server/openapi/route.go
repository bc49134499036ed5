package openapi

import (
	"strconv"

	"k8s.io/kube-openapi/pkg/common"
)

// container is the set of routes below one path. In OpenAPI v3, each container is a separate
// document. The routes are built on each call, so an unused container costs nothing.
type container struct {
	root   string
	routes func() ([]common.Route, error)
}

// path returns the path of the container's document in the v3 index.
func (c container) path() string { return c.root[1:] }

// described is a container whose routes are built.
type described struct {
	root   string
	routes []common.Route
}

func (d described) RootPath() string                   { return d.root }
func (d described) PathParameters() []common.Parameter { return nil }
func (d described) Routes() []common.Route             { return d.routes }

// route is one operation on one path.
type route struct {
	method, path, operation, description string
	consumes, produces                   []string
	parameters                           []common.Parameter
	reads                                any // sample of the request body, or nil
	writes                               any // sample of the response body, or nil
	responses                            []common.StatusCodeResponse
	metadata                             map[string]any
}

func (r *route) Method() string                                   { return r.method }
func (r *route) Path() string                                     { return r.path }
func (r *route) OperationName() string                            { return r.operation }
func (r *route) Parameters() []common.Parameter                   { return r.parameters }
func (r *route) Description() string                              { return r.description }
func (r *route) Consumes() []string                               { return r.consumes }
func (r *route) Produces() []string                               { return r.produces }
func (r *route) Metadata() map[string]any                         { return r.metadata }
func (r *route) RequestPayloadSample() any                        { return r.reads }
func (r *route) ResponsePayloadSample() any                       { return r.writes }
func (r *route) StatusCodeResponses() []common.StatusCodeResponse { return r.responses }

// response is the response of a route with one status code.
type response struct {
	code    int
	message string
	model   any
}

func (r response) Code() int       { return r.code }
func (r response) Message() string { return r.message }
func (r response) Model() any      { return r.model }

// parameter is one parameter of a route. Path parameters are always required and query
// parameters never; only a request body may be either.
type parameter struct {
	name, description, dataType string
	kind                        common.ParameterKind
	required                    bool
}

func (p *parameter) Name() string               { return p.name }
func (p *parameter) Description() string        { return p.description }
func (p *parameter) Required() bool             { return p.required }
func (p *parameter) Kind() common.ParameterKind { return p.kind }
func (p *parameter) DataType() string           { return p.dataType }
func (p *parameter) AllowMultiple() bool        { return false }

// MarshalJSON encodes only the name. The builders encode every parameter of every route for an
// error message that is hardly ever needed.
func (p *parameter) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, p.name), nil
}

func pathParameter(name, description string) *parameter {
	return &parameter{name: name, description: description, dataType: "string", kind: common.PathParameterKind, required: true}
}

func queryParameter(name, description, dataType string) *parameter {
	return &parameter{name: name, description: description, dataType: dataType, kind: common.QueryParameterKind}
}

// bodyParameter makes the builders describe the request body, with the type of the route's
// sample.
func bodyParameter(required bool) *parameter {
	return &parameter{name: "body", kind: common.BodyParameterKind, required: required}
}
