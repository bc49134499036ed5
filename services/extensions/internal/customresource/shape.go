package customresource

import (
	"cmp"
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// shape is the part of a structural schema that determines whether pruning, defaulting and
// coercion change a value. It has a hundredth of the size of the schema. A nil shape stands
// for no schema.
type shape struct {
	// properties are sorted by name, as members are in encoded objects.
	properties []property
	// additional is the shape of members that are no properties, if hasAdditional is set.
	additional    *shape
	hasAdditional bool
	items         *shape

	nullable, preserves, embedded bool
	// unprovable is set if no object of this shape can be proved identical.
	unprovable bool
}

type property struct {
	name      string
	defaulted bool
	shape     *shape
}

// Most shapes are one of these two.
var scalar, nullableScalar = &shape{}, &shape{nullable: true}

func newShape(s *structuralschema.Structural) *shape {
	if s == nil {
		return nil
	}
	out := &shape{items: newShape(s.Items), nullable: s.Nullable, preserves: s.XPreserveUnknownFields, embedded: s.XEmbeddedResource}
	if s.AdditionalProperties != nil {
		out.additional, out.hasAdditional = newShape(s.AdditionalProperties.Structural), true
	}
	if len(s.Properties) > 0 {
		out.properties = make([]property, 0, len(s.Properties))
	}
	for name := range s.Properties {
		p := s.Properties[name]
		out.properties = append(out.properties, property{name: name, defaulted: p.Default.Object != nil, shape: newShape(&p)})
	}
	slices.SortFunc(out.properties, func(a, b property) int { return cmp.Compare(a.name, b.name) })
	out.unprovable = out.embedded && out.touchesMetadata()
	switch {
	case out.properties != nil || out.hasAdditional || out.items != nil || out.preserves || out.embedded:
		return out
	case out.nullable:
		return nullableScalar
	default:
		return scalar
	}
}

// newRootShape returns the shape of the objects of a kind; nil if they cannot be proved
// identical.
func newRootShape(s *structuralschema.Structural) *shape {
	root := newShape(s)
	if root == nil || root.embedded || root.touchesMetadata() {
		return nil
	}
	return root
}

// touchesMetadata reports whether the schema of a resource might change well-formed
// metadata.
func (s *shape) touchesMetadata() bool {
	return s.hasAdditional || slices.ContainsFunc(s.properties, func(p property) bool { return p.name == "metadata" && p.shape.changes() })
}

// changes reports whether the schema may add something to a value or make a part of it
// well-formed.
func (s *shape) changes() bool {
	if s == nil {
		return false
	}
	return s.embedded || s.items.changes() || s.additional.changes() ||
		slices.ContainsFunc(s.properties, func(p property) bool { return p.defaulted || p.shape.changes() })
}
