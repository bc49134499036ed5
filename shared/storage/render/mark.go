package render

import (
	"bytes"
	"encoding/binary"
	"errors"

	"triune.dev/shared/storage/bytecache"
)

// mark says that the stored bytes are sent, plus the resourceVersion. For JSON it has the
// offset of the splice point and whether there is a final newline; for protobuf the size of
// the message with the resourceVersion. So the size is known without reading the stored
// bytes.
type mark uint32

func jsonMark(at int, newline bool) mark {
	m := mark(at) << 1
	if newline {
		m |= 1
	}
	return m
}

func (m mark) at() int { return int(m >> 1) }

// newlines returns the number of final newlines.
func (m mark) newlines() int { return int(m & 1) }

func protobufMark(size int) mark { return mark(size) }

func (m mark) size() int { return int(m) }

// maxMark bounds the size of an encoded mark; every rendered object is larger.
const maxMark = 8

func (m mark) bytes() []byte { return binary.LittleEndian.AppendUint32(nil, uint32(m)) }

func readMark(data []byte) mark { return mark(binary.LittleEndian.Uint32(data)) }

func isMark(data []byte) bool { return len(data) <= maxMark }

// errMarked is returned by renderOrMark if it has set a mark on the entry.
var errMarked = errors.New("marked")

// mark sets a mark on the entry, or returns it as a form if the entry has no room.
func (v *Version) mark(e *bytecache.Entry, f Format, m mark) ([]byte, error) {
	if e.SetMark(v.formIDs[f], uint32(m)) {
		return nil, errMarked
	}
	return m.bytes(), nil
}

// proveIdentical returns the mark of JSON that is sent as it is stored, if the Prover
// recognizes it.
func (v *Version) proveIdentical(e *bytecache.Entry) (m mark, ok bool) {
	if v.prover == nil || e.Err != nil || v.encoders[JSON] == nil {
		return 0, false
	}
	if m, ok := e.Mark(v.formIDs[JSON]); ok {
		return mark(m), true
	}
	_, err := withData(nil, e, func(_, stored []byte) ([]byte, error) {
		if v.prover.Identical(stored) {
			var at int
			at, ok = findJSONSplicePoint(stored)
			m = jsonMark(at, bytes.HasSuffix(stored, newline))
		}
		return nil, nil
	})
	return m, ok && err == nil
}

// renderOrMark renders an entry, or returns a mark if the stored bytes can be sent.
func (v *Version) renderOrMark(e *bytecache.Entry, f Format) ([]byte, error) {
	if f == JSON && e.Revision > 0 {
		if m, ok := v.proveIdentical(e); ok {
			return v.mark(e, f, m)
		}
	}
	if gv, ok := f.metadata(); ok && f.json() {
		if rendered, ok := v.partialOfJSON(e, gv); ok {
			return rendered, nil
		}
	}
	buffer := renderBuffers.Get().(*bytes.Buffer)
	defer func() {
		if buffer.Cap() <= maxPooledBuffer {
			buffer.Reset()
			renderBuffers.Put(buffer)
		}
	}()
	if err := v.render(buffer, e, f, e.Revision); err != nil {
		return nil, err
	}
	rendered := buffer.Bytes()
	switch f {
	case Protobuf:
		stored := e.Data()
		spliced, ok := spliceProtobuf(make([]byte, 0, len(rendered)), stored, e.Revision)
		if ok && bytes.Equal(spliced, rendered) {
			p, _ := findSplicePoint(stored) // cannot fail again
			return v.mark(e, f, protobufMark(p.rawSize(digitCount(e.Revision))))
		}
	case JSON:
		if v.typeMeta != nil || len(rendered) != e.Size()+jsonVersionSize(e.Revision) {
			break
		}
		stored := e.Data()
		at, ok := findJSONSplicePoint(stored)
		if ok && bytes.Equal(appendJSON(make([]byte, 0, len(rendered)), stored, at, e.Revision), rendered) {
			return v.mark(e, f, jsonMark(at, bytes.HasSuffix(stored, newline)))
		}
	}
	return bytes.Clone(rendered), nil
}
