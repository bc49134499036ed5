package reads

import (
	"encoding/binary"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/fields"

	"triune.dev/shared/storage/bytecache"
)

// fieldsOf returns the selectable fields of an entry.
//
// Several versions of a custom resource share one cache but have different selectable
// fields. The fields of each version are a form of the entry, made from the decoded object.
func (h *Handlers) fieldsOf(e *bytecache.Entry) (fields.Fields, error) {
	if !h.config.OwnFields {
		found, err := h.config.Cache.FieldsOf(e)
		return fields.Set(found), err
	}
	data, err := e.Form(h.space.Budget(), h.ownFields, func(e *bytecache.Entry) ([]byte, error) {
		found, err := h.config.Version.Fields(e)
		return packFields(found), err
	})
	return packedFields(data), err
}

// packedFields are alternating names and values, each after its length as a varint. They
// implement fields.Fields without another copy.
type packedFields []byte

func packFields(all map[string]string) []byte {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, s := range []string{name, all[name]} {
			out = append(binary.AppendUvarint(out, uint64(len(s))), s...)
		}
	}
	return out
}

// Has reports whether there is a field.
func (p packedFields) Has(field string) bool {
	_, ok := p.find(field)
	return ok
}

// Get returns the value of a field, empty if there is none.
func (p packedFields) Get(field string) string {
	value, _ := p.find(field)
	return string(value)
}

func (p packedFields) find(field string) (value []byte, ok bool) {
	next := func() []byte {
		size, n := binary.Uvarint(p)
		s := p[n : n+int(size)]
		p = p[n+int(size):]
		return s
	}
	for len(p) > 0 {
		name, value := next(), next()
		if string(name) == field {
			return value, true
		}
	}
	return nil, false
}
