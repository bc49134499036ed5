package render

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/storage/bytecache"
)

// unprintedFields are the large fields of built-in kinds that no Table printer reads, so
// DecodePrinted need not decode them. They are paths of field numbers, as in
// generated.proto of the API. Metadata is not among them, because table rows include it.
var unprintedFields = map[schema.GroupVersionKind]cut{
	{Version: "v1", Kind: "Pod"}: newCut(slices.Concat([][]uint8{
		{podSpec, 1},  // volumes
		{podSpec, 18}, // affinity
		{podSpec, 22}, // tolerations
		{podSpec, 33}, // topologySpreadConstraints
		{podSpec, 34}, // ephemeralContainers
	}, unprintedContainerFields(2), unprintedContainerFields(20))...), // containers, initContainers
	{Version: "v1", Kind: "Node"}: newCut([]uint8{3, 8}), // status.images
}

const podSpec = 2

// unprintedContainerFields are those of a container list in the spec of a pod. Printers
// count the containers, and read their names and whether they are restartable.
func unprintedContainerFields(field uint8) [][]uint8 {
	return [][]uint8{
		{podSpec, field, 3},  // command
		{podSpec, field, 4},  // args
		{podSpec, field, 6},  // ports
		{podSpec, field, 7},  // env
		{podSpec, field, 8},  // resources
		{podSpec, field, 9},  // volumeMounts
		{podSpec, field, 10}, // livenessProbe
		{podSpec, field, 11}, // readinessProbe
		{podSpec, field, 12}, // lifecycle
		{podSpec, field, 15}, // securityContext
		{podSpec, field, 19}, // envFrom
		{podSpec, field, 22}, // startupProbe
	}
}

// DecodePrinted is Decode for the printer of a Table. It may leave fields out that the
// printer ignores, and does not report errors in them.
func (v *Version) DecodePrinted(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	without, ok := unprintedFields[v.config.Kind]
	if !ok || v.typeMeta == nil || e.Err != nil {
		return v.Decode(e, revision)
	}
	buffer := dataBuffers.Get().(*[]byte)
	printed, ok := without.appendStored((*buffer)[:0], e.Data())
	var obj runtime.Object
	var err error
	if ok {
		obj, err = v.decode(e, printed, revision) // decode retains none of the bytes
	}
	if cap(printed) <= maxPooledBuffer {
		*buffer = printed
	}
	dataBuffers.Put(buffer)
	if ok && err == nil {
		return obj, nil
	}
	return v.Decode(e, revision)
}

// cut lists the parts to leave out of a message, by field number. Fields beyond its length
// stay.
type cut []omission

// omission is the part to leave out of a field: all of it, or a cut of its message.
type omission struct {
	all  bool
	part cut
}

func newCut(paths ...[]uint8) cut {
	var c cut
	for _, path := range paths {
		c = c.with(path)
	}
	return c
}

func (c cut) with(path []uint8) cut {
	for len(c) <= int(path[0]) {
		c = append(c, omission{})
	}
	if o := &c[path[0]]; len(path) == 1 {
		o.all = true
	} else {
		o.part = o.part.with(path[1:])
	}
	return c
}

// appendStored appends a stored object without the parts to leave out. ok is false if this
// server did not write the object.
func (c cut) appendStored(dst, stored []byte) (out []byte, ok bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return dst, false
	}
	dst = append(dst, e.head...)
	if dst, ok = c.appendField(dst, tagRaw>>3, e.raw); !ok {
		return dst, false
	}
	return append(dst, protobufTail...), true
}

// lengthSize is the number of bytes for the length of a cut message. The length is known
// only after the message is written, so it may have more bytes than necessary.
const lengthSize = 4

// appendField appends a message field without the parts to leave out.
func (c cut) appendField(dst []byte, number uint64, message []byte) (out []byte, ok bool) {
	dst = binary.AppendUvarint(dst, number<<3|wireBytes)
	dst = append(dst, make([]byte, lengthSize)...)
	start := len(dst)
	if dst, ok = c.appendMessage(dst, message); !ok {
		return dst, false
	}
	length := len(dst) - start
	for i := range lengthSize - 1 {
		dst[start-lengthSize+i] = byte(length>>(7*i)) | 0x80
	}
	last := length >> (7 * (lengthSize - 1))
	dst[start-1] = byte(last)
	return dst, last < 0x80
}

func (c cut) appendMessage(dst, message []byte) (out []byte, ok bool) {
	w := walk{message: message}
	copied := 0 // the offset up to which message is copied or left out
	for start := 0; w.next(); start = w.at {
		if w.number >= uint64(len(c)) {
			continue
		}
		o := &c[w.number]
		if !o.all && (o.part == nil || w.wire != protowire.BytesType) {
			continue
		}
		dst = append(dst, message[copied:start]...)
		copied = w.at
		if o.all {
			continue
		}
		if dst, ok = o.part.appendField(dst, w.number, w.content()); !ok {
			return dst, false
		}
	}
	return append(dst, message[copied:]...), !w.failed
}
