package render

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ListMeta is the metadata of a list.
type ListMeta struct {
	Revision  int64
	Continue  string
	Remaining *int64
}

// Envelope is the part of a list response around the items.
type Envelope struct {
	// Empty is the complete body of a list without items.
	Empty []byte
	// In JSON, Head and Tail enclose the items, which are separated by commas. In protobuf,
	// AppendOpen replaces Head, because it needs the size of the items, and each item
	// follows an AppendFrame.
	Head, Tail []byte

	protobuf bool
	listMeta []byte
}

// EmptyList returns a list without items.
func (v *Version) EmptyList(m ListMeta) (runtime.Object, error) {
	list, err := v.ListOf([]runtime.Object{})
	if err != nil {
		return nil, err
	}
	if err := v.versioner.UpdateList(list, uint64(m.Revision), m.Continue, m.Remaining); err != nil {
		return nil, fmt.Errorf("metadata of a list: %w", err)
	}
	return list, nil
}

// ListOf returns a list of objects returned by Decode.
func (v *Version) ListOf(objects []runtime.Object) (runtime.Object, error) {
	list := v.config.NewList()
	if err := meta.SetList(list, objects); err != nil {
		return nil, fmt.Errorf("make a list: %w", err)
	}
	return list, nil
}

// List returns the envelope of a list. It encodes a list without items.
func (v *Version) List(m ListMeta, f Format) (Envelope, error) {
	list, err := v.EmptyList(m)
	if err != nil {
		return Envelope{}, err
	}
	if gv, ok := f.metadata(); ok {
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			return Envelope{}, fmt.Errorf("metadata of a list: %w", err)
		}
		list = partialList(gv, metav1.ListMeta{
			ResourceVersion: accessor.GetResourceVersion(), Continue: accessor.GetContinue(), RemainingItemCount: accessor.GetRemainingItemCount(),
		})
	}
	if v.encoders[f] == nil {
		return Envelope{}, fmt.Errorf("%s is not served as %s", v.config.Kind, f.mediaType())
	}
	empty, err := runtime.Encode(v.encoders[f], list)
	if err != nil {
		return Envelope{}, fmt.Errorf("encode a list: %w", err)
	}
	if f.json() {
		return jsonEnvelope(empty)
	}
	return protobufEnvelope(empty)
}

func jsonEnvelope(empty []byte) (Envelope, error) {
	// A list with items differs only here. The strings around it are names and tokens
	// without quotes.
	for _, items := range []string{`"items":[]`, `"items":null`} {
		if at := bytes.Index(empty, []byte(items)); at >= 0 {
			head := append(bytes.Clone(empty[:at]), `"items":[`...)
			tail := append([]byte{']'}, empty[at+len(items):]...)
			return Envelope{Empty: empty, Head: head, Tail: tail}, nil
		}
	}
	return Envelope{}, fmt.Errorf("a list without items")
}

func protobufEnvelope(empty []byte) (Envelope, error) {
	e, ok := openEnvelope(empty)
	if !ok {
		return Envelope{}, errNotProtobuf
	}
	if _, rest, ok := field(e.raw, tagListMeta); !ok || len(rest) != 0 {
		return Envelope{}, errNotProtobuf
	}
	return Envelope{Empty: empty, Head: e.head, Tail: protobufTail, protobuf: true, listMeta: e.raw}, nil
}

// AppendOpen appends the part before the items. framed is the size of all items with their
// frames; JSON ignores it.
func (e Envelope) AppendOpen(dst []byte, framed int64) []byte {
	dst = append(dst, e.Head...)
	if !e.protobuf {
		return dst
	}
	dst = append(dst, tagRaw)
	dst = binary.AppendUvarint(dst, uint64(len(e.listMeta))+uint64(framed))
	return append(dst, e.listMeta...)
}

// Size returns the size of the body; framed is the size of all items with their frames or
// commas.
func (e Envelope) Size(framed int64) int64 {
	size := int64(len(e.Head)+len(e.Tail)) + framed
	if e.protobuf {
		raw := uint64(len(e.listMeta)) + uint64(framed)
		size += 1 + int64(protowire.SizeVarint(raw)) + int64(len(e.listMeta))
	}
	return size
}

// FrameSize returns the size of an item of a protobuf list with its tag and length.
func FrameSize(item int) int64 { return int64(1 + protowire.SizeVarint(uint64(item)) + item) }

// AppendFrame appends the tag and length of an item of a protobuf list.
func AppendFrame(dst []byte, item int) []byte {
	return binary.AppendUvarint(append(dst, tagItem), uint64(item))
}
