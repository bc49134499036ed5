package customresource

import (
	"cmp"
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// shape is what of a structural schema decides whether pruning, defaulting and coercion
// change a value: a hundredth of the schema, which need not be kept for it. A nil shape
// is no schema.
type shape struct {
	// properties are in the order of their names, as members are when they are encoded.
	properties []property
	// others is the shape of members that are no properties, if more is set.
	others *shape
	more   bool
	items  *shape

	nullable, preserves, embedded bool
	// refused: of objects of this shape nothing is known.
	refused bool
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
		out.others, out.more = newShape(s.AdditionalProperties.Structural), true
	}
	if len(s.Properties) > 0 {
		out.properties = make([]property, 0, len(s.Properties))
	}
	for name := range s.Properties {
		p := s.Properties[name]
		out.properties = append(out.properties, property{name: name, defaulted: p.Default.Object != nil, shape: newShape(&p)})
	}
	slices.SortFunc(out.properties, func(a, b property) int { return cmp.Compare(a.name, b.name) })
	out.refused = out.embedded && out.touchesMetadata()
	switch {
	case out.properties != nil || out.more || out.items != nil || out.preserves || out.embedded:
		return out
	case out.nullable:
		return nullableScalar
	default:
		return scalar
	}
}

// newRootShape returns the shape of whole objects of a kind; nil where nothing is known
// about them.
func newRootShape(s *structuralschema.Structural) *shape {
	root := newShape(s)
	if root == nil || root.embedded || root.touchesMetadata() {
		return nil
	}
	return root
}

// touchesMetadata tells whether the schema of a resource might change metadata that is
// well-formed.
func (s *shape) touchesMetadata() bool {
	return s.more || slices.ContainsFunc(s.properties, func(p property) bool { return p.name == "metadata" && p.shape.changes() })
}

// changes tells whether anything is added to a value, or made well-formed in it.
func (s *shape) changes() bool {
	if s == nil {
		return false
	}
	return s.embedded || s.items.changes() || s.others.changes() ||
		slices.ContainsFunc(s.properties, func(p property) bool { return p.defaulted || p.shape.changes() })
}
