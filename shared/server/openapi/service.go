package openapi

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"triune.dev/shared/server/resources"
)

// Config is the configuration of a tier's documents.
type Config struct {
	// Definitions generates the definitions of the Go types that the tier serves, as
	// openapi-gen does. Each call must return a new map. Required.
	Definitions common.GetOpenAPIDefinitions
	// Schemes map definitions to group-version-kinds. Required.
	Schemes []*runtime.Scheme
	// Title and Version are the info of every document, such as "Kubernetes" and "1.36".
	Title, Version string
	// SecurityDefinitions say how clients authenticate. Nil omits authentication from the
	// documents, including the response 401. For v3 they are converted, which supports the type
	// "apiKey" and, without parameters, any other.
	SecurityDefinitions spec.SecurityDefinitions
	// Keep is how long definitions are retained after their last use, in case they are used
	// again. Zero means 10 seconds.
	Keep time.Duration
}

// Service describes a tier. Create it with New before the resource table, because the table
// needs its TypeConverter, and then call Describe with the table.
type Service struct {
	config      Config
	definitions *definitions
	converters  *converters
	documents   *Documents
	v2          Source // set by Describe
}

// New returns a service that describes nothing yet.
func New(config Config) *Service {
	if config.Keep == 0 {
		config.Keep = 10 * time.Second
	}
	s := &Service{
		config: config,
		definitions: &definitions{
			generate: config.Definitions,
			schemes:  config.Schemes,
			keep:     config.Keep,
		},
		documents: NewDocuments(),
	}
	s.converters = newConverters(s.definitions)
	return s
}

// Describe adds the resources of t and the extras to the documents. It builds nothing. Call it
// once, after the last group was installed and before the first request.
func (s *Service) Describe(t *resources.Table, extras ...Extra) {
	containers := containersOf(t)
	for _, extra := range extras {
		containers = append(containers, extra.container)
	}
	for _, c := range containers {
		s.documents.SetV3(c.path(), Source{Build: func() ([]byte, error) { return s.buildV3(c) }})
	}
	s.v2 = Source{Build: func() ([]byte, error) { return s.buildV2(containers) }}
	s.documents.SetV2(s.v2)
	s.converters.learn(t)
}

// V2 returns the source of the v2 document that Describe set, for a tier that replaces it by a
// document with more merged into it.
func (s *Service) V2() Source { return s.v2 }

// Documents returns the documents of the tier. Other sources may be added to them.
func (s *Service) Documents() *Documents { return s.documents }

// groupVersionOf returns the group-version with the given root path.
func groupVersionOf(root string) (schema.GroupVersion, bool) {
	switch parts := strings.Split(strings.Trim(root, "/"), "/"); {
	case len(parts) == 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}, true
	case len(parts) == 3 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, true
	}
	return schema.GroupVersion{}, false
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
