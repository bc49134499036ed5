package customresource

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/services/extensions/internal/compactcrd"
)

// schemas holds the structural schemas of all versions of a kind, for pruning, defaulting
// and CEL. All versions are needed because stored objects may have any of them.
//
// Schemas are a hundred times as large as the compact CRD. So they are built when an object
// is decoded or shapes are built, and dropped after a while without use.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknownFields disables pruning (CRDs that were created through
	// v1beta1 may still have it set).
	preserveUnknownFields bool
	// structural has an entry for each version with a schema. The defaults in it are
	// pruned.
	structural *expiring[structuralSchemas]
	// shapes has an entry for each version whose stored objects can be checked to be
	// identical to what is sent, without the schema.
	shapes *expiring[map[string]*shape]
}

type structuralSchemas map[string]*structuralschema.Structural

func newSchemas(crd *apiextensionsv1.CustomResourceDefinition) *schemas {
	s := &schemas{
		kind:                  schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknownFields: crd.Spec.PreserveUnknownFields,
		structural:            newExpiring(func() (*structuralSchemas, error) { return newStructural(crd) }),
	}
	s.shapes = newExpiring(s.newShapes)
	return s
}

// newStructural converts the schemas of crd. An error means that validation has accepted
// an invalid CRD.
func newStructural(crd *apiextensionsv1.CustomResourceDefinition) (*structuralSchemas, error) {
	crd, err := compactcrd.Expand(crd)
	if err != nil {
		return nil, err
	}
	all := structuralSchemas{}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		internal, err := internalSchema(v)
		if err != nil {
			return nil, err
		}
		if internal == nil {
			continue
		}
		structural, err := structuralschema.NewStructural(internal)
		switch {
		case crd.Spec.PreserveUnknownFields:
			// Without pruning a schema may be non-structural; it has no defaults then.
		case err != nil:
			return nil, fmt.Errorf("make the schema of version %s structural: %w", v.Name, err)
		default:
			// NewStructural shares the defaults with its input.
			structural = structural.DeepCopy()
			if err := structuraldefaulting.PruneDefaults(structural); err != nil {
				return nil, fmt.Errorf("prune the defaults of version %s: %w", v.Name, err)
			}
		}
		all[v.Name] = structural
	}
	return &all, nil
}

// internalSchema converts the schema of a version to the internal API version, which
// validators need. It returns nil if there is no schema.
func internalSchema(v *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.JSONSchemaProps, error) {
	if v.Schema == nil {
		return nil, nil
	}
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, &internal, nil); err != nil {
		return nil, fmt.Errorf("convert the schema of version %s: %w", v.Name, err)
	}
	return internal.OpenAPIV3Schema, nil
}

// forVersion returns the structural schema of a version; it may be nil.
func (s *schemas) forVersion(version string) (*structuralschema.Structural, error) {
	all, err := s.structural.get()
	if err != nil {
		return nil, err
	}
	return (*all)[version], nil
}

func (s *schemas) newShapes() (*map[string]*shape, error) {
	shapes := map[string]*shape{}
	if s.preserveUnknownFields {
		return &shapes, nil
	}
	all, err := s.structural.get()
	if err != nil {
		return nil, err
	}
	for version, structural := range *all {
		shapes[version] = newRootShape(structural)
	}
	return &shapes, nil
}

// shapeOf returns the shape of objects in a version; it may be nil.
func (s *schemas) shapeOf(version string) (*shape, error) {
	all, err := s.shapes.get()
	if err != nil {
		return nil, err
	}
	return (*all)[version], nil
}

// stop keeps the schemas from being dropped.
func (s *schemas) stop() {
	s.structural.stop()
	s.shapes.stop()
}

// describes reports whether the schemas are those of gk. The same codecs decode other
// kinds: options in the body of a delete, and scales.
func (s *schemas) describes(gk schema.GroupKind) bool {
	return s.kind == gk
}
