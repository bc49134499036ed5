package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const kindsExtension = "x-kubernetes-group-version-kind"

// operationIDAndTags adds the group-version of a path to the name of an operation, so that
// names are unique across documents.
func operationIDAndTags(r common.Route) (string, []string, error) {
	return apiopenapi.GetOperationIDAndTags(&restful.Route{Operation: r.OperationName(), Path: r.Path()})
}

// describeAll builds the routes of containers.
func describeAll(containers ...container) ([]common.RouteContainer, error) {
	all := make([]common.RouteContainer, 0, len(containers))
	for _, c := range containers {
		routes, err := c.routes()
		if err != nil {
			return nil, err
		}
		all = append(all, described{root: c.root, routes: routes})
	}
	return all, nil
}

// buildV2 returns the v2 document of all containers as JSON.
func (s *Service) buildV2(containers []container) ([]byte, error) {
	all, err := describeAll(containers...)
	if err != nil {
		return nil, err
	}
	config := &common.Config{
		ProtocolList:                   []string{"https"},
		Info:                           s.info(),
		DefaultResponse:                &spec.Response{ResponseProps: spec.ResponseProps{Description: defaultResponse}},
		GetOperationIDAndTagsFromRoute: operationIDAndTags,
		GetDefinitionName:              s.definitions.naming().lookup,
		// References differ in v2, so it needs its own definitions.
		GetDefinitions: func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			return s.config.Definitions(references(refV2))
		},
	}
	if security := s.config.SecurityDefinitions; security != nil {
		config.SecurityDefinitions = &security
		config.DefaultSecurity = requirements(security)
		config.CommonResponses = map[int]spec.Response{
			http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: http.StatusText(http.StatusUnauthorized)}},
		}
	}
	document, err := builder.BuildOpenAPISpecFromRoutes(all, config)
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v2: %w", err)
	}
	// Clients of v2 mistake a default for a constraint.
	document.Definitions = handler.PruneDefaults(document.Definitions)
	return document.MarshalJSON()
}

// buildV3 returns the v3 document of one container as JSON.
func (s *Service) buildV3(c container) ([]byte, error) {
	all, err := describeAll(c)
	if err != nil {
		return nil, err
	}
	config := &common.OpenAPIV3Config{
		Info:                           s.info(),
		DefaultResponse:                &spec3.Response{ResponseProps: spec3.ResponseProps{Description: defaultResponse}},
		GetOperationIDAndTagsFromRoute: operationIDAndTags,
		GetDefinitionName:              s.definitions.naming().lookup,
	}
	if security := s.config.SecurityDefinitions; security != nil {
		config.SecuritySchemes = schemesV3(security)
		config.DefaultSecurity = requirements(security)
		config.CommonResponses = map[int]*spec3.Response{
			http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: http.StatusText(http.StatusUnauthorized)}},
		}
	}
	var encoded []byte
	err = s.definitions.use(func(v3 map[string]common.OpenAPIDefinition) error {
		config.Definitions = v3
		document, err := builder3.BuildOpenAPISpecFromRoutes(all, config)
		if err != nil {
			return err
		}
		if gv, ok := groupVersionOf(c.root); ok {
			narrowKinds(document, gv)
		}
		if encoded, err = document.MarshalJSON(); err != nil {
			return err
		}
		// kube-apiserver encodes v3 documents, unlike v2, with HTML escaping.
		var escaped bytes.Buffer
		escaped.Grow(len(encoded) + len(encoded)/64)
		json.HTMLEscape(&escaped, encoded)
		encoded = escaped.Bytes()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v3 of %s: %w", c.root, err)
	}
	return encoded, nil
}

const defaultResponse = "Default Response."

func (s *Service) info() *spec.Info {
	return &spec.Info{InfoProps: spec.InfoProps{Title: s.config.Title, Version: s.config.Version}}
}

// requirements returns security requirements of which any one suffices.
func requirements(security spec.SecurityDefinitions) []map[string][]string {
	var required []map[string][]string
	for _, name := range sortedKeys(security) {
		required = append(required, map[string][]string{name: {}})
	}
	return required
}

// schemesV3 converts security definitions to OpenAPI v3.
func schemesV3(security spec.SecurityDefinitions) spec3.SecuritySchemes {
	schemes := spec3.SecuritySchemes{}
	for name, scheme := range security {
		schemes[name] = &spec3.SecurityScheme{
			SecuritySchemeProps: spec3.SecuritySchemeProps{
				Type: scheme.Type, Description: scheme.Description, Name: scheme.Name, In: scheme.In,
			},
			VendorExtensible: scheme.VendorExtensible,
		}
	}
	return schemes
}

// narrowKinds shortens the list of group-version-kinds of the two types that every API group
// registers. A document keeps its own group-version and core's; the others do not concern it
// and would be most of its size.
func narrowKinds(document *spec3.OpenAPI, gv schema.GroupVersion) {
	if document.Components == nil {
		return
	}
	for _, definition := range document.Components.Schemas {
		kinds, _ := definition.Extensions[kindsExtension].([]any)
		if len(kinds) < 2 {
			continue
		}
		switch field(kinds[0], "kind") {
		case "WatchEvent", "DeleteOptions":
		default:
			continue
		}
		own := slices.DeleteFunc(slices.Clone(kinds), func(kind any) bool {
			group, version := field(kind, "group"), field(kind, "version")
			return (group != gv.Group || version != gv.Version) && (group != "" || version != "v1")
		})
		if len(own) == 0 {
			delete(definition.Extensions, kindsExtension)
			continue
		}
		definition.Extensions[kindsExtension] = own
	}
}

func field(kind any, name string) string {
	fields, _ := kind.(map[string]any)
	value, _ := fields[name].(string)
	return value
}
