package encoded

import (
	"encoding/binary"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/bytecache"
)

// unprinted are, of built-in kinds that have much that no printer of a Table looks at, the
// parts that are not decoded for one: paths of field numbers, as in generated.proto of the
// API. Metadata are not among them, which a row is sent with.
var unprinted = map[schema.GroupVersionKind]cut{
	{Version: "v1", Kind: "Pod"}: newCut(slices.Concat([][]uint8{
		{podSpec, 1},  // volumes
		{podSpec, 18}, // affinity
		{podSpec, 22}, // tolerations
		{podSpec, 33}, // topologySpreadConstraints
		{podSpec, 34}, // ephemeralContainers
	}, ofContainers(2), ofContainers(20))...), // containers, initContainers
	{Version: "v1", Kind: "Node"}: newCut([]uint8{3, 8}), // status.images
}

const podSpec = 2

// ofContainers are the parts of a field of containers in the spec of a pod, which are counted
// and told apart by their names, and of which some are restartable.
func ofContainers(field uint8) [][]uint8 {
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

// DecodePrinted is Decode for the printer of a Table, which need not see all of an object.
// It does not find out whether what it leaves out could be decoded.
func (v *Version) DecodePrinted(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	without, ok := unprinted[v.config.Kind]
	if !ok || v.typeMeta == nil || e.Err != nil {
		return v.Decode(e, revision)
	}
	buffer := opened.Get().(*[]byte)
	printed, ok := without.stored((*buffer)[:0], e.Data())
	var obj runtime.Object
	var err error
	if ok {
		obj, err = v.decode(e, printed, revision) // which keeps none of the bytes
	}
	if cap(printed) <= maxOpened {
		*buffer = printed
	}
	opened.Put(buffer)
	if ok && err == nil {
		return obj, nil
	}
	return v.Decode(e, revision)
}

// cut says what is left out of a message, by field number. What is beyond its length stays.
type cut []omission

// omission is what is left out of a field: all of it, or a part of the message that it is.
type omission struct {
	all  bool
	part cut
}

func newCut(paths ...[]uint8) cut {
	var c cut
	for _, path := range paths {
		c = c.at(path)
	}
	return c
}

func (c cut) at(path []uint8) cut {
	for len(c) <= int(path[0]) {
		c = append(c, omission{})
	}
	if o := &c[path[0]]; len(path) == 1 {
		o.all = true
	} else {
		o.part = o.part.at(path[1:])
	}
	return c
}

// stored appends a stored object without what is left out. ok is false for what this server
// has not written.
func (c cut) stored(dst, stored []byte) (out []byte, ok bool) {
	e, ok := openEnvelope(stored)
	if !ok {
		return dst, false
	}
	dst = append(dst, e.head...)
	if dst, ok = c.field(dst, tagRaw>>3, e.raw); !ok {
		return dst, false
	}
	return append(dst, protobufTail...), true
}

// lengthSize is how many bytes the length of a message has that was cut: more than it may
// need, for it is known only when the message is there.
const lengthSize = 4

// field appends a field that is a message, less what is left out of it.
func (c cut) field(dst []byte, number uint64, message []byte) (out []byte, ok bool) {
	dst = binary.AppendUvarint(dst, number<<3|wireBytes)
	dst = append(dst, make([]byte, lengthSize)...)
	from := len(dst)
	if dst, ok = c.message(dst, message); !ok {
		return dst, false
	}
	length := len(dst) - from
	for i := range lengthSize - 1 {
		dst[from-lengthSize+i] = byte(length>>(7*i)) | 0x80
	}
	last := length >> (7 * (lengthSize - 1))
	dst[from-1] = byte(last)
	return dst, last < 0x80
}

func (c cut) message(dst, message []byte) (out []byte, ok bool) {
	w := walk{message: message}
	kept := 0 // what comes before it is there or left out
	for start := 0; w.next(); start = w.at {
		if w.number >= uint64(len(c)) {
			continue
		}
		o := &c[w.number]
		if !o.all && (o.part == nil || w.wire != wireBytes) {
			continue
		}
		dst = append(dst, message[kept:start]...)
		kept = w.at
		if o.all {
			continue
		}
		if dst, ok = o.part.field(dst, w.number, w.content()); !ok {
			return dst, false
		}
	}
	return append(dst, message[kept:]...), !w.failed
}
