package encoded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"strconv"
)

// The wire format of a built-in object (k8s.io/apimachinery, runtime.Unknown and
// metav1.ObjectMeta in their generated.proto): four bytes of magic, then a message
// of type Unknown, whose field 2 is the object, whose field 1 is the metadata,
// whose field 6 is the resourceVersion. Strings that are not pointers are always
// written, so a stored object has an empty field 6.
var protobufMagic = []byte("k8s\x00")

const (
	wireVarint, wireBytes = 0, 2

	tagTypeMeta = 1<<3 | wireBytes
	tagRaw      = 2<<3 | wireBytes
	// tagItem is the tag of an item in a list message, tagListMeta that of the
	// list's metadata.
	tagItem     = 2<<3 | wireBytes
	tagListMeta = 1<<3 | wireBytes
	tagMetadata = 1<<3 | wireBytes

	fieldKind            = 2
	fieldResourceVersion = 6
	fieldLabels          = 11
)

// protobufTail is content encoding and content type, both empty.
var protobufTail = []byte{3<<3 | wireBytes, 0, 4<<3 | wireBytes, 0}

var errNotProtobuf = errors.New("not a protobuf object in its envelope")

func sizeOfVarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// field reads the bytes of the field that a message begins with, if it has the tag.
func field(message []byte, tag byte) (content, rest []byte, ok bool) {
	if len(message) == 0 || message[0] != tag {
		return nil, nil, false
	}
	size, n := binary.Uvarint(message[1:])
	if n <= 0 || size > uint64(len(message)-1-n) {
		return nil, nil, false
	}
	from := 1 + n
	return message[from : from+int(size)], message[from+int(size):], true
}

// envelope is what protobufMagic and runtime.Unknown say around an object.
type envelope struct {
	// head is everything before the tag of the object.
	head []byte
	raw  []byte
}

// openEnvelope takes the envelope apart that a serializer of this server has
// written. It refuses others, though they may be valid.
func openEnvelope(data []byte) (envelope, bool) {
	if !bytes.HasPrefix(data, protobufMagic) {
		return envelope{}, false
	}
	_, rest, ok := field(data[len(protobufMagic):], tagTypeMeta)
	if !ok {
		return envelope{}, false
	}
	raw, tail, ok := field(rest, tagRaw)
	if !ok || !bytes.Equal(tail, protobufTail) {
		return envelope{}, false
	}
	return envelope{head: data[:len(data)-len(rest)], raw: raw}, true
}

// builtInKind returns the kind of a stored object of a built-in kind, which stands first in
// its JSON, too; nil for other objects.
func builtInKind(stored []byte) []byte {
	if rest, ok := bytes.CutPrefix(stored, []byte(`{"kind":"`)); ok {
		kind, _, _ := bytes.Cut(rest, []byte{'"'})
		return kind
	}
	rest, ok := bytes.CutPrefix(stored, protobufMagic)
	if !ok {
		return nil
	}
	var kind []byte
	if typeMeta, _, ok := field(rest, tagTypeMeta); ok {
		eachField(typeMeta, func(number uint64, content []byte) bool {
			if number == fieldKind {
				kind = content
			}
			return true
		})
	}
	return kind
}

// place is where in a message the resourceVersion belongs.
type place struct {
	envelope
	// metadata is the content of the metadata, gap the offset in it of the empty
	// resourceVersion, after the object what follows the metadata.
	metadata []byte
	gap      int
	after    []byte
}

// emptyField is the length of a resourceVersion that is there and empty.
const emptyField = 2

// findPlace looks for the empty resourceVersion of a stored object.
func findPlace(stored []byte) (place, bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return place{}, false
	}
	metadata, after, ok := field(e.raw, tagMetadata)
	if !ok {
		return place{}, false
	}
	for at := 0; at < len(metadata); {
		number, wire := metadata[at]>>3, metadata[at]&7
		if number > fieldResourceVersion || wire != wireBytes {
			break // fields are written in order
		}
		content, rest, ok := field(metadata[at:], metadata[at])
		if !ok {
			break
		}
		if number == fieldResourceVersion {
			return place{envelope: e, metadata: metadata, gap: at, after: after}, len(content) == 0
		}
		at = len(metadata) - len(rest)
	}
	return place{}, false
}

// sizes of the message with a resourceVersion of so many digits.
func (p place) metadataSize(digits int) int { return len(p.metadata) + digits }

func (p place) rawSize(digits int) int {
	metadata := p.metadataSize(digits)
	return 1 + sizeOfVarint(uint64(metadata)) + metadata + len(p.after)
}

func (p place) appendRaw(dst []byte, revision []byte) []byte {
	dst = append(dst, tagMetadata)
	dst = binary.AppendUvarint(dst, uint64(p.metadataSize(len(revision))))
	dst = append(dst, p.metadata[:p.gap]...)
	dst = append(dst, fieldResourceVersion<<3|wireBytes, byte(len(revision)))
	dst = append(dst, revision...)
	dst = append(dst, p.metadata[p.gap+emptyField:]...)
	return append(dst, p.after...)
}

func (p place) appendObject(dst []byte, revision []byte) []byte {
	dst = append(dst, p.head...)
	dst = append(dst, tagRaw)
	dst = binary.AppendUvarint(dst, uint64(p.rawSize(len(revision))))
	dst = p.appendRaw(dst, revision)
	return append(dst, protobufTail...)
}

// spliceProtobuf appends a stored object with its resourceVersion.
func spliceProtobuf(dst, stored []byte, revision int64) ([]byte, bool) {
	p, ok := findPlace(stored)
	if !ok {
		return dst, false
	}
	var digits [20]byte
	return p.appendObject(dst, strconv.AppendInt(digits[:0], revision, 10)), true
}

// onlyMetadata returns the metadata of a message that has it first and once: metadata in
// two parts would have to be merged. The rest is looked at no closer than for that.
func onlyMetadata(raw []byte) (metadata []byte, ok bool) {
	metadata, after, ok := field(raw, tagMetadata)
	return metadata, ok && eachField(after, func(number uint64, _ []byte) bool { return number != tagMetadata>>3 })
}

// metadataAlone returns a stored object without anything but its metadata, and whether
// that has labels.
func metadataAlone(stored []byte) (alone []byte, labelled, ok bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return nil, false, false
	}
	metadata, ok := onlyMetadata(e.raw)
	if !ok || !eachField(metadata, func(number uint64, _ []byte) bool {
		labelled = labelled || number == fieldLabels
		return true
	}) {
		return nil, false, false
	}
	raw := 1 + sizeOfVarint(uint64(len(metadata))) + len(metadata)
	alone = make([]byte, 0, len(e.head)+1+sizeOfVarint(uint64(raw))+raw+len(protobufTail))
	alone = binary.AppendUvarint(append(append(alone, e.head...), tagRaw), uint64(raw))
	alone = binary.AppendUvarint(append(alone, tagMetadata), uint64(len(metadata)))
	return append(append(alone, metadata...), protobufTail...), labelled, true
}

func digitsOf(revision int64) int {
	n := 1
	for ; revision >= 10; revision /= 10 {
		n++
	}
	return n
}

// eachProtobufLabel calls yield for the labels of a stored object. It returns false where
// the bytes are not what a serializer of Kubernetes writes; the object must be decoded then.
func eachProtobufLabel(stored []byte, yield func(key, value []byte)) (ok bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return false
	}
	metadata, ok := onlyMetadata(e.raw)
	return ok && eachField(metadata, func(number uint64, content []byte) bool {
		if number != fieldLabels {
			return true
		}
		key, rest, ok := field(content, 1<<3|wireBytes)
		if !ok {
			return false
		}
		value, rest, ok := field(rest, 2<<3|wireBytes)
		if !ok || len(rest) != 0 {
			return false
		}
		yield(key, value)
		return true
	})
}

// eachField calls yield for the fields of a message, with the content of those that
// have bytes, until it returns false. It returns false then, and for a message that
// is malformed or has types that Kubernetes does not use in metadata.
func eachField(message []byte, yield func(number uint64, content []byte) bool) bool {
	w := walk{message: message}
	for w.next() {
		if !yield(w.number, w.content()) {
			return false
		}
	}
	return !w.failed
}

// walk goes through the fields of a message.
type walk struct {
	message []byte
	// at is where the next field begins, from where the content of this one does.
	at, from int
	// number and wire are those of this field, varint its value or how many bytes it
	// has.
	number, wire, varint uint64
	// failed: it has ended at what is malformed, or of a type that Kubernetes seldom
	// uses.
	failed bool
}

// maxFieldNumber is the highest there is. Decoders cut off what is beyond their
// integers, and take it for another one.
const maxFieldNumber = 1<<29 - 1

// next goes to the next field. It returns false at the end.
func (w *walk) next() bool {
	if w.at == len(w.message) {
		return false
	}
	w.failed = true // until it is known to be whole
	tag, n := binary.Uvarint(w.message[w.at:])
	if n <= 0 || tag>>3 == 0 || tag>>3 > maxFieldNumber {
		return false
	}
	value, more := binary.Uvarint(w.message[w.at+n:])
	if more <= 0 {
		return false
	}
	w.number, w.wire, w.varint = tag>>3, tag&7, value
	w.from = w.at + n + more
	w.at = w.from
	switch {
	case w.wire == wireVarint:
	case w.wire == wireBytes && value <= uint64(len(w.message)-w.from):
		w.at += int(value)
	default:
		return false
	}
	w.failed = false
	return true
}

// content is what this field has of bytes, nothing if it is a varint.
func (w *walk) content() []byte { return w.message[w.from:w.at] }
