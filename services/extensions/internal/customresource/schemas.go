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

// schemas are what pruning, defaulting and CEL work on, for one kind in all its
// versions. All versions are needed at once because an object comes out of storage in
// whatever version it was written with.
//
// They are made when an object is decoded or shapes are made, and let go of when none has
// been for a while: they are a hundred times as large as their CRD's outline.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknownFields disables pruning (CRDs that were created through
	// v1beta1 may still have it set).
	preserveUnknownFields bool
	// structural has an entry for each version that has a schema. Its defaults are
	// pruned themselves.
	structural *kept[structuralSchemas]
	// shapes has one for each version whose stored objects can be told to be what is
	// sent: who reads such objects needs no schema.
	shapes *kept[map[string]*shape]
}

type structuralSchemas map[string]*structuralschema.Structural

func newSchemas(crd *apiextensionsv1.CustomResourceDefinition) *schemas {
	s := &schemas{
		kind:                  schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknownFields: crd.Spec.PreserveUnknownFields,
		structural:            newKept(func() (*structuralSchemas, error) { return newStructural(crd) }),
	}
	s.shapes = newKept(s.newShapes)
	return s
}

// newStructural converts the schemas of crd. An error means that validation has let
// a CRD pass that it should have refused.
func newStructural(crd *apiextensionsv1.CustomResourceDefinition) (*structuralSchemas, error) {
	crd, err := compactcrd.Whole(crd)
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
		all[v.Name] = structural
	}
	return &all, nil
}

// internalSchema is the schema of a version in the internal version of the API, which
// validators are made of; nil where there is none.
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

// of returns the structural schema of a version; it may be nil.
func (s *schemas) of(version string) (*structuralschema.Structural, error) {
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

// stop ends the sweeps of what is kept.
func (s *schemas) stop() {
	s.structural.stop()
	s.shapes.stop()
}

// describes tells whether objects of gvk are the ones the schemas are for. Other
// kinds pass the same codecs: options in the body of a delete, scales.
func (s *schemas) describes(gk schema.GroupKind) bool {
	return s.kind == gk
}
