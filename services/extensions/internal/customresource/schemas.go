package customresource

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// schemas holds the schemas of one kind in all its versions. All versions are
// needed at once because an object comes out of storage in whatever version it
// was written with. It is immutable after newSchemas.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknownFields disables pruning (CRDs that were created through
	// v1beta1 may still have it set).
	preserveUnknownFields bool
	// structural has an entry for each version that has a schema; it is what
	// pruning, defaulting and CEL work on. Its defaults are pruned themselves.
	structural map[string]*structuralschema.Structural
	// validation has the same schemas in the internal version of the API.
	validation map[string]*apiextensions.JSONSchemaProps
}

// newSchemas converts the schemas of crd. An error means that validation has let
// a CRD pass that it should have refused.
func newSchemas(crd *apiextensionsv1.CustomResourceDefinition) (*schemas, error) {
	s := &schemas{
		kind:                  schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknownFields: crd.Spec.PreserveUnknownFields,
		structural:            map[string]*structuralschema.Structural{},
		validation:            map[string]*apiextensions.JSONSchemaProps{},
	}
	for _, v := range crd.Spec.Versions {
		if v.Schema == nil {
			continue
		}
		var internal apiextensions.CustomResourceValidation
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, &internal, nil); err != nil {
			return nil, fmt.Errorf("convert the schema of version %s: %w", v.Name, err)
		}
		structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
		switch {
		case s.preserveUnknownFields:
			// Without pruning, a schema that is not structural is allowed; it
			// then has no structural form and defaults nothing.
		case err != nil:
			return nil, fmt.Errorf("make the schema of version %s structural: %w", v.Name, err)
		default:
			// NewStructural shares the defaults with its input.
			structural = structural.DeepCopy()
			if err := structuraldefaulting.PruneDefaults(structural); err != nil {
				return nil, fmt.Errorf("prune the defaults of version %s: %w", v.Name, err)
			}
		}
		s.structural[v.Name] = structural
		s.validation[v.Name] = internal.OpenAPIV3Schema
	}
	return s, nil
}

// of returns the structural schema of a version; it may be nil.
func (s *schemas) of(version string) *structuralschema.Structural {
	return s.structural[version]
}

// describes tells whether objects of gvk are the ones the schemas are for. Other
// kinds pass the same codecs: options in the body of a delete, scales.
func (s *schemas) describes(gk schema.GroupKind) bool {
	return s.kind == gk
}
