package render

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// The wire format of a built-in object (k8s.io/apimachinery, runtime.Unknown and
// metav1.ObjectMeta in their generated.proto): four bytes of magic, then a message
// of type Unknown, whose field 2 is the object, whose field 1 is the metadata,
// whose field 6 is the resourceVersion. Strings that are not pointers are always
// written, so a stored object has an empty field 6.
var protobufMagic = []byte("k8s\x00")

const (
	wireBytes = 2 // protowire.BytesType, without a type

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

// field returns the content of the field at the start of a message, if it has the tag.
func field(message []byte, tag byte) (content, rest []byte, ok bool) {
	if len(message) == 0 || message[0] != tag {
		return nil, nil, false
	}
	content, n := protowire.ConsumeBytes(message[1:])
	if n < 0 {
		return nil, nil, false
	}
	return content, message[1+n:], true
}

// envelope is the encoding around an object: protobufMagic and runtime.Unknown.
type envelope struct {
	// head is the part before the tag of the object.
	head []byte
	raw  []byte
}

// openEnvelope parses an envelope written by a serializer of this server. It refuses other
// envelopes, even valid ones.
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

// builtInKind returns the kind of a stored object of a built-in kind, which comes first in
// JSON, too; nil for other objects.
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

// splicePoint is the position of the resourceVersion in a message.
type splicePoint struct {
	envelope
	// metadata is the content of the metadata field, gap the offset in it of the empty
	// resourceVersion, and after the part of the object after the metadata.
	metadata []byte
	gap      int
	after    []byte
}

// emptyField is the size of an empty resourceVersion field.
const emptyField = 2

// findSplicePoint finds the empty resourceVersion of a stored object.
func findSplicePoint(stored []byte) (splicePoint, bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return splicePoint{}, false
	}
	metadata, after, ok := field(e.raw, tagMetadata)
	if !ok {
		return splicePoint{}, false
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
			return splicePoint{envelope: e, metadata: metadata, gap: at, after: after}, len(content) == 0
		}
		at = len(metadata) - len(rest)
	}
	return splicePoint{}, false
}

// The sizes of the message are those with a resourceVersion of so many digits.
func (p splicePoint) metadataSize(digits int) int { return len(p.metadata) + digits }

func (p splicePoint) rawSize(digits int) int {
	metadata := p.metadataSize(digits)
	return 1 + protowire.SizeVarint(uint64(metadata)) + metadata + len(p.after)
}

func (p splicePoint) appendRaw(dst []byte, revision []byte) []byte {
	dst = append(dst, tagMetadata)
	dst = binary.AppendUvarint(dst, uint64(p.metadataSize(len(revision))))
	dst = append(dst, p.metadata[:p.gap]...)
	dst = append(dst, fieldResourceVersion<<3|wireBytes, byte(len(revision)))
	dst = append(dst, revision...)
	dst = append(dst, p.metadata[p.gap+emptyField:]...)
	return append(dst, p.after...)
}

func (p splicePoint) appendObject(dst []byte, revision []byte) []byte {
	dst = append(dst, p.head...)
	dst = append(dst, tagRaw)
	dst = binary.AppendUvarint(dst, uint64(p.rawSize(len(revision))))
	dst = p.appendRaw(dst, revision)
	return append(dst, protobufTail...)
}

// spliceProtobuf appends a stored object with its resourceVersion.
func spliceProtobuf(dst, stored []byte, revision int64) ([]byte, bool) {
	p, ok := findSplicePoint(stored)
	if !ok {
		return dst, false
	}
	var digits [20]byte
	return p.appendObject(dst, strconv.AppendInt(digits[:0], revision, 10)), true
}

// soleMetadata returns the metadata of a message that has it first and once; repeated
// metadata would have to be merged. The other fields are only checked for that.
func soleMetadata(raw []byte) (metadata []byte, ok bool) {
	metadata, after, ok := field(raw, tagMetadata)
	return metadata, ok && eachField(after, func(number uint64, _ []byte) bool { return number != tagMetadata>>3 })
}

// protobufMetadataOnly returns a stored object reduced to its metadata, and whether that
// has labels.
func protobufMetadataOnly(stored []byte) (alone []byte, labeled, ok bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return nil, false, false
	}
	metadata, ok := soleMetadata(e.raw)
	if !ok || !eachField(metadata, func(number uint64, _ []byte) bool {
		labeled = labeled || number == fieldLabels
		return true
	}) {
		return nil, false, false
	}
	raw := 1 + protowire.SizeVarint(uint64(len(metadata))) + len(metadata)
	alone = make([]byte, 0, len(e.head)+1+protowire.SizeVarint(uint64(raw))+raw+len(protobufTail))
	alone = binary.AppendUvarint(append(append(alone, e.head...), tagRaw), uint64(raw))
	alone = binary.AppendUvarint(append(alone, tagMetadata), uint64(len(metadata)))
	return append(append(alone, metadata...), protobufTail...), labeled, true
}

func digitCount(revision int64) int {
	n := 1
	for ; revision >= 10; revision /= 10 {
		n++
	}
	return n
}

// eachProtobufLabel calls yield for each label of a stored object. It returns false if a
// serializer of Kubernetes did not write the bytes; the object must be decoded then.
func eachProtobufLabel(stored []byte, yield func(key, value []byte)) (ok bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return false
	}
	metadata, ok := soleMetadata(e.raw)
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

// eachField calls yield for each field of a message, with the content of length-delimited
// fields, until yield returns false. It returns false then, and for a message that is
// malformed or has types that Kubernetes does not use in metadata.
func eachField(message []byte, yield func(number uint64, content []byte) bool) bool {
	w := walk{message: message}
	for w.next() {
		if !yield(w.number, w.content()) {
			return false
		}
	}
	return !w.failed
}

// walk iterates over the fields of a message.
type walk struct {
	message []byte
	// at is the offset of the next field, from that of the content of the current one.
	at, from int
	// number and wire are those of the current field, varint its value or size.
	number uint64
	wire   protowire.Type
	varint uint64
	// failed reports that the iteration ended at malformed data, or at a type that
	// Kubernetes seldom uses.
	failed bool
}

// next advances to the next field. It returns false at the end.
func (w *walk) next() bool {
	if w.at == len(w.message) {
		return false
	}
	w.failed = true // until the field is complete
	number, wire, n := protowire.ConsumeTag(w.message[w.at:])
	if n < 0 || number > protowire.MaxValidNumber { // decoders truncate those to others
		return false
	}
	value, more := protowire.ConsumeVarint(w.message[w.at+n:])
	if more < 0 {
		return false
	}
	w.number, w.wire, w.varint = uint64(number), wire, value
	w.from = w.at + n + more
	w.at = w.from
	switch {
	case w.wire == protowire.VarintType:
	case w.wire == protowire.BytesType && value <= uint64(len(w.message)-w.from):
		w.at += int(value)
	default:
		return false
	}
	w.failed = false
	return true
}

// content returns the bytes of the current field, none if it is a varint.
func (w *walk) content() []byte { return w.message[w.from:w.at] }
