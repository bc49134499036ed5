package customresource

import (
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/render"
)

var _ render.Prover = provingCodec{}

// provingCodec is the codec of a storage. It can prove, without decoding, that stored bytes
// are identical to what a client is sent.
type provingCodec struct {
	runtime.Codec
	schemas *schemas
	// version is the served version, apiVersion that field of its objects.
	version, apiVersion string
}

// Identical implements render.Prover. Objects that are stored in another version than the
// served one are never identical.
func (c provingCodec) Identical(stored []byte) bool {
	if len(stored) == 0 || stored[0] != '{' {
		return false
	}
	root, err := c.schemas.shapeOf(c.version)
	if err != nil || root == nil {
		return false
	}
	// Stored bytes do not change, and the reader keeps no part of them.
	r := reader{text: unsafe.String(unsafe.SliceData(stored), len(stored))}
	return r.identical(root, c.apiVersion, c.schemas.kind.Kind)
}

// identical reports whether the text is an object that coercer and defaulter do not change,
// encoded as the encoder would.
func (r *reader) identical(root *shape, apiVersion, kind string) bool {
	seen := 0
	members, remaining := r.object(), remainingProperties(root.properties)
	for members.next() {
		known, ok := remaining.match(&members)
		switch {
		case !ok:
		case members.key == "apiVersion":
			seen++
			ok = r.stringEqual(apiVersion)
		case members.key == "kind":
			seen++
			ok = r.stringEqual(kind)
		case members.key == "metadata":
			seen++
			found := metadataFacts{}
			ok = r.metadata(&found) && found.generation && !found.resourceVersion
		default:
			ok = r.member(root, known, members.key, root.preserves)
		}
		if !ok {
			return false
		}
	}
	return members.end() && seen == 3 && remaining.satisfied() && r.text[r.pos:] == "\n"
}

// stringEqual reads a string and reports whether it is text, without escapes.
func (r *reader) stringEqual(text string) bool {
	raw, _, ok := r.str()
	return ok && raw == text
}

// value reads a value and reports whether it stays unchanged. preserving means that unknown
// fields are not pruned.
func (r *reader) value(s *shape, preserving bool) bool {
	switch r.peek() {
	case '"':
		return r.anyString()
	case '{':
		return r.fields(s, preserving || s != nil && s.preserves)
	case '[':
		return r.items(s, preserving || s != nil && s.preserves)
	case 't', 'f':
		return r.boolean()
	case 'n':
		// A null that is not allowed is dropped or replaced by a default.
		return (s == nil || s.nullable) && r.take("null")
	default:
		_, _, ok := r.number()
		return ok
	}
}

// fields reads an object. Known properties must have their shape even if unknown fields are
// preserved.
func (r *reader) fields(s *shape, preserving bool) bool {
	var remaining remainingProperties
	if s != nil {
		remaining = s.properties
		if s.unprovable {
			return false
		}
	}
	members := r.object()
	for members.next() {
		known, ok := remaining.match(&members)
		if !ok || !r.member(s, known, members.key, preserving) {
			return false
		}
	}
	return members.end() && remaining.satisfied()
}

// member reads the value of a member of an object with shape s. known is nil if the member
// is no property.
func (r *reader) member(s *shape, known *property, key string, preserving bool) bool {
	if s != nil && s.embedded {
		switch key {
		case "apiVersion", "kind":
			return r.anyString()
		case "metadata":
			return r.metadata(&metadataFacts{})
		}
	}
	switch {
	case known != nil:
		return r.value(known.shape, false)
	case s != nil && s.hasAdditional:
		return r.value(s.additional, false)
	default:
		return preserving && r.value(nil, true)
	}
}

func (r *reader) items(s *shape, preserving bool) bool {
	var element *shape
	if s != nil {
		element = s.items
	}
	elements := r.list()
	for elements.next() {
		if !r.value(element, preserving) {
			return false
		}
	}
	return elements.end()
}

// remainingProperties are the properties of a shape that follow the members read so far.
type remainingProperties []property

// match returns the property of the current member, or nil. ok is false if a property with
// a default is missing before it.
func (e *remainingProperties) match(o *openObject) (p *property, ok bool) {
	for rest := *e; len(rest) > 0; rest = rest[1:] {
		p := &rest[0]
		order := compare(p.name, false, o.key, o.escaped)
		switch {
		case order == 0:
			*e = rest[1:]
			return p, true
		case order > 0:
			*e = rest
			return nil, true
		case p.defaulted:
			return nil, false
		}
	}
	*e = nil
	return nil, true
}

// satisfied reports, at the end of an object, whether no remaining property has a default.
func (e remainingProperties) satisfied() bool {
	for i := range e {
		if e[i].defaulted {
			return false
		}
	}
	return true
}
