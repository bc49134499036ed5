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

	"triune.dev/shared/table"
)

// Config is what the documents of a tier have in common.
type Config struct {
	// Definitions makes the definitions of the Go types that the tier serves, as
	// openapi-gen generates them. Every call returns a map of its own. Required.
	Definitions common.GetOpenAPIDefinitions
	// Schemes tell which group-version-kinds a definition stands for. Required.
	Schemes []*runtime.Scheme
	// Title and Version are the info of every document: "Kubernetes" and "1.36".
	Title, Version string
	// SecurityDefinitions say how clients authenticate; nil leaves authentication
	// out of the documents, and with it the answer 401. For v3 they are converted,
	// which covers the types "apiKey" and, without parameters, any other.
	SecurityDefinitions spec.SecurityDefinitions
	// Keep is for how long definitions are held after their last use, for another
	// use may follow. Zero means 10 seconds.
	Keep time.Duration
}

// Service describes a tier. Make it with New before the resource table, since the
// table takes its TypeConverter, and give it the table with Describe.
type Service struct {
	config      Config
	definitions *definitions
	converters  *converters
	documents   *Documents
	v2          Source // written by Describe
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

// Describe adds the resources of t and the extras to the documents. It builds
// nothing. Call it once, after the last group was installed and before the first
// request.
func (s *Service) Describe(t *table.Table, extras ...Extra) {
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

// V2 is the source of the v2 document of what Describe was given, for a tier that
// replaces that document by one that has more merged into it.
func (s *Service) V2() Source { return s.v2 }

// Documents are the documents of the tier; other sources may be added to them.
func (s *Service) Documents() *Documents { return s.documents }

// groupVersionOf returns the group-version whose root a path is.
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
