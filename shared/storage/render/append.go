package render

import (
	"bytes"
	"strconv"

	"triune.dev/shared/storage/bytecache"
)

// AppendObject appends the body of a GET response.
func (v *Version) AppendObject(dst []byte, e *bytecache.Entry, f Format) ([]byte, error) {
	form, err := v.form(e, f)
	switch {
	case err != nil:
		return dst, err
	case form.rendered != nil:
		return append(dst, form.rendered...), nil
	default:
		return withData(dst, e, func(dst, stored []byte) ([]byte, error) {
			if f == Protobuf {
				p, err := splicePointOf(stored)
				if err != nil {
					return dst, err
				}
				var digits [20]byte
				return p.appendObject(dst, strconv.AppendInt(digits[:0], e.Revision, 10)), nil
			}
			return appendJSON(dst, stored, form.mark.at(), e.Revision), nil
		})
	}
}

// item returns the encoding of a rendered object in a list: head followed by item.
func (v *Version) item(e *bytecache.Entry, rendered []byte, f Format) (head string, item []byte, err error) {
	switch {
	case !f.json():
		open, ok := openEnvelope(rendered)
		if !ok {
			return "", nil, errNotProtobuf
		}
		return "", open.raw, nil
	case f == JSON && v.typeMeta != nil:
		return v.itemStyle.item(v, e, rendered)
	default:
		return "", bytes.TrimSuffix(rendered, newline), nil
	}
}

var newline = []byte("\n")

// AppendItem appends an object as an item of a list: the JSON value, or the protobuf
// message without envelope, tag and length.
func (v *Version) AppendItem(dst []byte, e *bytecache.Entry, f Format) ([]byte, error) {
	form, err := v.form(e, f)
	switch {
	case err != nil:
		return dst, err
	case form.rendered != nil:
		head, item, err := v.item(e, form.rendered, f)
		if err != nil {
			return dst, err
		}
		return append(append(dst, head...), item...), nil
	case f == Protobuf:
		return appendRaw(dst, e)
	default:
		dst, err := withData(dst, e, func(dst, stored []byte) ([]byte, error) {
			return appendJSON(dst, stored, form.mark.at(), e.Revision), nil
		})
		return bytes.TrimSuffix(dst, newline), err
	}
}

// AppendFramed appends an object as an item of a protobuf list, with tag and length.
func (v *Version) AppendFramed(dst []byte, e *bytecache.Entry, f Format) ([]byte, error) {
	form, err := v.form(e, f)
	if err != nil {
		return dst, err
	}
	if form.rendered == nil {
		return appendRaw(AppendFrame(dst, form.mark.size()), e)
	}
	_, item, err := v.item(e, form.rendered, f)
	if err != nil {
		return dst, err
	}
	return append(AppendFrame(dst, len(item)), item...), nil
}

// appendRaw appends the message of a marked protobuf object.
func appendRaw(dst []byte, e *bytecache.Entry) ([]byte, error) {
	return withData(dst, e, func(dst, stored []byte) ([]byte, error) {
		p, err := splicePointOf(stored)
		if err != nil {
			return dst, err
		}
		var digits [20]byte
		return p.appendRaw(dst, strconv.AppendInt(digits[:0], e.Revision, 10)), nil
	})
}

// ItemSize returns the number of bytes that AppendItem appends.
func (v *Version) ItemSize(e *bytecache.Entry, f Format) (int, error) {
	form, err := v.form(e, f)
	switch {
	case err != nil:
		return 0, err
	case form.rendered != nil:
		head, item, err := v.item(e, form.rendered, f)
		return len(head) + len(item), err
	case f == Protobuf:
		return form.mark.size(), nil
	default:
		return e.Size() - form.mark.newlines() + jsonVersionSize(e.Revision), nil
	}
}

// splicePointOf returns the splice point of a marked protobuf object.
func splicePointOf(stored []byte) (splicePoint, error) {
	p, ok := findSplicePoint(stored)
	if !ok {
		return splicePoint{}, errNotProtobuf
	}
	return p, nil
}
