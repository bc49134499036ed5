package render

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
)

// Selectable describes the positions of the selectable fields of a built-in kind in its
// stored bytes.
type Selectable struct {
	// APIVersion and Kind are the stored type that the paths refer to. Objects stored in
	// another version must be decoded.
	APIVersion, Kind string
	// Namespaced adds metadata.namespace to metadata.name, which every kind has.
	Namespaced bool
	Fields     []SelectableField
}

// SelectableField is the position of one selectable field.
type SelectableField struct {
	Name string
	// Path are the field numbers that lead to the field, as in generated.proto of the API.
	Path []uint8
	// Fallback is the path of the value to use if the field is empty. It may be nil.
	Fallback []uint8
	// Type is the type of the fields at Path and Fallback.
	Type FieldType
	// Defaulted says that decoding replaces the empty string by a default.
	Defaulted bool
	// Distinct says that few objects have the same value, so that it is not worth
	// interning.
	Distinct bool
}

// FieldType is the type of a selectable field.
type FieldType uint8

// The types that selectable fields have.
const (
	String FieldType = iota
	Bool
	Int32
)

// Field numbers of metav1.ObjectMeta, below field 1 of every object.
var (
	namePath      = []uint8{tagMetadata >> 3, 1}
	namespacePath = []uint8{tagMetadata >> 3, 3}
)

// Fields reads the selectable fields of one kind from stored bytes without decoding them.
// It is safe for concurrent use.
type Fields struct {
	// head is the prefix of the stored bytes of the kind.
	head     []byte
	root     message
	fields   []readField
	interned interner
	// single has a reader for each field, by name.
	single map[string]*Fields
}

// readField is a SelectableField with its paths resolved to indexes of values; fallback is
// -1 if there is none.
type readField struct {
	SelectableField
	value, fallback int
}

// message lists the fields to read of a message, by field number.
type message []target

// target is a field to read.
type target struct {
	// inner is nil unless fields of this field are to be read.
	inner message
	// value and end bound the indexes of the values at or below this field; they are equal
	// if there are none.
	value, end int
	// wire is the wire type that the field must have.
	wire protowire.Type
}

// Limits of the fields to read of one object. A set of field numbers must fit into 64 bits.
const maxValues, maxDepth, maxNumber = 16, 3, 63

// readValue is the value found at a path.
type readValue struct {
	// varint is the value or size of the field, 0 if it is empty.
	varint uint64
	// from and end are the offsets of its content.
	from, end int
	// repeated reports that the field, or a message that contains it, occurs more than
	// once. Depending on the field a decoder would take the last one or merge them.
	repeated bool
}

// NewFields returns a reader of the fields of a kind.
func NewFields(s Selectable) (*Fields, error) {
	meta := runtime.TypeMeta{APIVersion: s.APIVersion, Kind: s.Kind}
	typeMeta, err := meta.Marshal()
	if err != nil {
		return nil, fmt.Errorf("fields of %s: %w", s.Kind, err)
	}
	f := &Fields{head: append(slices.Clone(protobufMagic), tagTypeMeta)}
	f.head = binary.AppendUvarint(f.head, uint64(len(typeMeta)))
	f.head = append(f.head, typeMeta...)

	all := append([]SelectableField{{Name: "metadata.name", Path: namePath, Distinct: true}}, s.Fields...)
	if s.Namespaced {
		all = append(all, SelectableField{Name: "metadata.namespace", Path: namespacePath})
	}
	if err := f.resolve(s.Kind, all); err != nil {
		return nil, err
	}
	f.single = make(map[string]*Fields, len(all))
	for _, field := range all {
		reader := &Fields{head: f.head}
		if err := reader.resolve(s.Kind, []SelectableField{field}); err != nil {
			return nil, err
		}
		f.single[field.Name] = reader
	}
	return f, nil
}

// resolve assigns value indexes to the paths of fields.
func (f *Fields) resolve(kind string, all []SelectableField) error {
	wires := map[string]protowire.Type{} // by path
	for _, field := range all {
		wire := protowire.VarintType
		if field.Type == String {
			wire = protowire.BytesType
		}
		if len(field.Path) == 0 {
			return fmt.Errorf("fields of %s: %s has no path", kind, field.Name)
		}
		for _, path := range [][]uint8{field.Path, field.Fallback} {
			if path == nil {
				continue
			}
			if other, known := wires[string(path)]; known && other != wire {
				return fmt.Errorf("fields of %s: path %v has two types", kind, path)
			}
			wires[string(path)] = wire
		}
	}
	paths := slices.Sorted(maps.Keys(wires))
	if len(paths) > maxValues {
		return fmt.Errorf("fields of %s: %d paths are too many", kind, len(paths))
	}
	for i, path := range paths {
		if len(path) > maxDepth || strings.ContainsFunc(path, func(number rune) bool { return number == 0 || number > maxNumber }) {
			return fmt.Errorf("fields of %s: path %v is too long or has too high a number", kind, []byte(path))
		}
		if i > 0 && strings.HasPrefix(path, paths[i-1]) {
			return fmt.Errorf("fields of %s: path %v leads to a message", kind, []byte(paths[i-1]))
		}
		f.root = f.root.with(path, i, wires[path])
	}
	for _, field := range all {
		f.fields = append(f.fields, readField{SelectableField: field, value: slices.Index(paths, string(field.Path)), fallback: slices.Index(paths, string(field.Fallback))})
	}
	return nil
}

// with adds a path. Paths are added in order, so those of one message are adjacent.
func (m message) with(path string, value int, wire protowire.Type) message {
	number := int(path[0])
	for len(m) <= number {
		m = append(m, target{})
	}
	at := &m[number]
	if at.end == 0 {
		at.value = value
	}
	at.end, at.wire = value+1, wire
	if len(path) > 1 {
		at.wire = protowire.BytesType
		at.inner = at.inner.with(path[1:], value, wire)
	}
	return m
}

// OfEntry returns the selectable fields of an entry; ok is false if the bytes are ambiguous
// and the object must be decoded. Like Labels it does not check that the rest of the object
// can be decoded.
func (f *Fields) OfEntry(e *bytecache.Entry) (fields bytecache.Attributes, ok bool) {
	if e.Err != nil {
		return nil, false
	}
	_, _ = withData(nil, e, func(_, stored []byte) ([]byte, error) {
		fields, ok = f.of(e.Key, stored)
		return nil, nil
	})
	return fields, ok
}

// ValueOfEntry returns the value of one field, which is cheaper than OfEntry; known is
// false, too, if the kind has no such field. It implements bytecache.Options.Field.
func (f *Fields) ValueOfEntry(e *bytecache.Entry, name string) (value string, has, known bool) {
	reader := f.single[name]
	if reader == nil || e.Err != nil {
		return "", false, false
	}
	_, _ = withData(nil, e, func(_, stored []byte) ([]byte, error) {
		var values [maxValues]readValue
		var raw []byte
		if raw, known = reader.read(stored, &values); known {
			value, known = reader.value(&reader.fields[0], raw, &values, e.Key)
		}
		return nil, nil
	})
	return value, known, known
}

// of reads the fields of the object with a key, which ends in the object's name.
func (f *Fields) of(key string, stored []byte) (fields bytecache.Attributes, ok bool) {
	var values [maxValues]readValue
	raw, ok := f.read(stored, &values)
	if !ok {
		return nil, false
	}
	fields = make(bytecache.Attributes, len(f.fields))
	for i := range f.fields {
		field := &f.fields[i]
		if fields[field.Name], ok = f.value(field, raw, &values, key); !ok {
			return nil, false
		}
	}
	return fields, true
}

// read finds the values in a stored object; raw is the object without its envelope.
func (f *Fields) read(stored []byte, values *[maxValues]readValue) (raw []byte, ok bool) {
	if !bytes.HasPrefix(stored, f.head) {
		return nil, false
	}
	e, ok := openEnvelope(stored)
	return e.raw, ok && f.root.read(e.raw, 0, values)
}

// value returns the value of a field, or that of its fallback.
func (f *Fields) value(field *readField, raw []byte, values *[maxValues]readValue, key string) (text string, ok bool) {
	v := &values[field.value]
	if field.fallback >= 0 && !v.repeated && v.varint == 0 {
		v = &values[field.fallback]
	}
	return f.text(field, v, raw, key)
}

// read collects the values in the message that begins at an offset and ends with data. It
// returns false if the message is malformed.
func (m message) read(data []byte, from int, values *[maxValues]readValue) bool {
	var seen uint64 // field numbers
	w := walk{message: data, at: from}
	for w.next() {
		if w.number >= uint64(len(m)) || m[w.number].end == 0 {
			continue
		}
		t := &m[w.number]
		if w.wire != t.wire {
			return false
		}
		if t.inner == nil {
			v := &values[t.value]
			v.varint, v.from, v.end = w.varint, w.from, w.at
		} else if !t.inner.read(data[:w.at], w.from, values) {
			return false
		}
		if mark := uint64(1) << w.number; seen&mark == 0 {
			seen |= mark
			continue
		}
		for i := t.value; i < t.end; i++ {
			values[i].repeated = true
		}
	}
	return !w.failed
}

// text returns a value as the decoded object has it; raw is the object, key its key.
func (f *Fields) text(field *readField, v *readValue, raw []byte, key string) (text string, ok bool) {
	if v.repeated {
		return "", false
	}
	content := raw[v.from:v.end]
	switch {
	case field.Type == Bool:
		return strconv.FormatBool(v.varint != 0), true
	case field.Type == Int32:
		return strconv.Itoa(int(int32(v.varint))), true // truncated like in the decoder
	case len(content) == 0:
		return "", !field.Defaulted
	case !field.Distinct:
		return f.interned.intern(content), true
	case len(content) <= len(key) && key[len(key)-len(content):] == string(content):
		return key[len(key)-len(content):], true
	default:
		return string(content), true
	}
}

// StoredAs returns the version and kind in which a codec stores an object, if it stores it
// as protobuf.
func StoredAs(codec runtime.Encoder, obj runtime.Object) (apiVersion, kind string, ok bool) {
	data, err := runtime.Encode(codec, obj)
	if err != nil {
		return "", "", false
	}
	if _, ok := openEnvelope(data); !ok {
		return "", "", false
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(data[len(protobufMagic):]); err != nil {
		return "", "", false
	}
	return unknown.APIVersion, unknown.Kind, true
}
