package customresource

import (
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/render"
)

var _ render.Prover = provingCodec{}

// provingCodec is the codec of a storage, which tells of stored bytes by looking that
// they are what a client is sent.
type provingCodec struct {
	runtime.Codec
	schemas *schemas
	// version is the one to serve, apiVersion how objects name it.
	version, apiVersion string
}

// Identical does not decode. Objects in another version than the one to serve are
// never identical, so nothing that is has been converted.
func (c provingCodec) Identical(stored []byte) bool {
	if len(stored) == 0 || stored[0] != '{' {
		return false
	}
	root, err := c.schemas.shapeOf(c.version)
	if err != nil || root == nil {
		return false
	}
	// Stored bytes do not change, and nothing keeps a part of them.
	r := reader{text: unsafe.String(unsafe.SliceData(stored), len(stored))}
	return r.identical(root, c.apiVersion, c.schemas.kind.Kind)
}

// identical tells whether the text is an object of a kind that coercer and defaulter
// leave as it is, and written as it is encoded.
func (r *reader) identical(root *shape, apiVersion, kind string) bool {
	seen := 0
	members, expected := r.object(), expectations(root.properties)
	for members.next() {
		known, ok := expected.meet(&members)
		switch {
		case !ok:
		case members.key == "apiVersion":
			seen++
			ok = r.is(apiVersion)
		case members.key == "kind":
			seen++
			ok = r.is(kind)
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
	return members.end() && seen == 3 && expected.met() && r.text[r.at:] == "\n"
}

// is reads a string that has no escapes.
func (r *reader) is(text string) bool {
	raw, _, ok := r.str()
	return ok && raw == text
}

// value reads a value that stays as it is. preserving: what the shape does not know is
// not pruned.
func (r *reader) value(s *shape, preserving bool) bool {
	switch r.peek() {
	case '"':
		return r.anyText()
	case '{':
		return r.fields(s, preserving || s != nil && s.preserves)
	case '[':
		return r.items(s, preserving || s != nil && s.preserves)
	case 't', 'f':
		return r.boolean()
	case 'n':
		// Elsewhere it is dropped, or a default takes its place.
		return (s == nil || s.nullable) && r.take("null")
	default:
		_, _, ok := r.number()
		return ok
	}
}

// fields reads an object, of which a schema is respected even where what it does not
// know is preserved.
func (r *reader) fields(s *shape, preserving bool) bool {
	var expected expectations
	if s != nil {
		expected = s.properties
		if s.refused {
			return false
		}
	}
	members := r.object()
	for members.next() {
		known, ok := expected.meet(&members)
		if !ok || !r.member(s, known, members.key, preserving) {
			return false
		}
	}
	return members.end() && expected.met()
}

// member reads the value of a member of an object with shape s. known is nil where it is
// no property.
func (r *reader) member(s *shape, known *property, key string, preserving bool) bool {
	if s != nil && s.embedded {
		switch key {
		case "apiVersion", "kind":
			return r.anyText()
		case "metadata":
			return r.metadata(&metadataFacts{})
		}
	}
	switch {
	case known != nil:
		return r.value(known.shape, false)
	case s != nil && s.more:
		return r.value(s.others, false)
	default:
		return preserving && r.value(nil, true)
	}
}

func (r *reader) items(s *shape, preserving bool) bool {
	var of *shape
	if s != nil {
		of = s.items
	}
	elements := r.list()
	for elements.next() {
		if !r.value(of, preserving) {
			return false
		}
	}
	return elements.end()
}

// expectations are the properties of a shape that come after the members read so far.
type expectations []property

// meet returns the property that a member is, or nil. ok is false if a property that has
// a default has been left out.
func (e *expectations) meet(o *openObject) (p *property, ok bool) {
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

// met tells at the end of an object whether no default is left to be set.
func (e expectations) met() bool {
	for i := range e {
		if e[i].defaulted {
			return false
		}
	}
	return true
}
