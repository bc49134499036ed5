package encoded

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"triune.dev/shared/bytecache"
)

// Format is one way to send an object.
type Format uint8

// The formats that are made once for each entry and shared by all who are sent it.
const (
	JSON Format = iota
	Protobuf
	// Metadata formats are a PartialObjectMetadata of meta.k8s.io/v1, MetadataBeta
	// ones of v1beta1.
	MetadataJSON
	MetadataProtobuf
	MetadataBetaJSON
	MetadataBetaProtobuf
	formats
)

func (f Format) json() bool { return f%2 == 0 }

func (f Format) mediaType() string {
	if f.json() {
		return runtime.ContentTypeJSON
	}
	return runtime.ContentTypeProtobuf
}

// metadata tells the formats that have only an object's metadata, and their version.
func (f Format) metadata() (schema.GroupVersion, bool) {
	switch f {
	case MetadataJSON, MetadataProtobuf:
		return metav1.SchemeGroupVersion, true
	case MetadataBetaJSON, MetadataBetaProtobuf:
		return metav1beta1.SchemeGroupVersion, true
	}
	return schema.GroupVersion{}, false
}

// A Prover is a Codec of custom resources that may know of stored bytes, without decoding
// them, that they are what a client is sent. It is safe for concurrent use.
type Prover interface {
	// Identical says that what is stored has no resourceVersion, and that decoded and
	// encoded as JSON, with the newline at the end, it is the same again. false may mean
	// that it does not know.
	Identical(stored []byte) bool
}

// Config says how one resource is served in one version.
type Config struct {
	// Codec is the storage's: it decodes what is stored into the version that the
	// server works with, with defaults. It may be a Prover. Required.
	Codec runtime.Codec
	// New and NewList make the empty objects that are decoded into. Required.
	New, NewList func() runtime.Object
	// Serializer and Kind are those of the request scope. Required.
	Serializer runtime.NegotiatedSerializer
	Kind       schema.GroupVersionKind
	// Attributes is the storage's: the labels and selectable fields of a decoded
	// object. Required for selectors.
	Attributes storage.AttrFunc
	// Budget bounds what is kept of rendered objects: that of the space.
	Budget *bytecache.Budget
}

// Version is one resource in one version. It is safe for concurrent use.
//
// What it keeps on entries is its own: when anything changes that decides about the
// bytes, such as the schema of a custom resource, make another one.
type Version struct {
	config    Config
	versioner storage.APIObjectVersioner
	encoders  [formats]runtime.Encoder // nil where the media type is not served
	kinds     [formats]bytecache.FormID
	// typeMeta is what the JSON of an object of a built-in kind begins with.
	typeMeta []byte
	// prover is nil where objects must be decoded to tell.
	prover Prover
	// items is how objects of a built-in kind stand in a list.
	items  itemStyle
	labels Labels
}

// New makes a Version.
func New(c Config) (*Version, error) {
	if c.Codec == nil || c.New == nil || c.NewList == nil || c.Serializer == nil || c.Budget == nil {
		return nil, errors.New("encoded version: a codec, constructors, a serializer and a budget are required")
	}
	v := &Version{config: c}
	for f := range formats {
		serializer, gv := c.Serializer, c.Kind.GroupVersion()
		if meta, ok := f.metadata(); ok {
			serializer, gv = apihelpers.GetMetaInternalVersionCodecs(), meta
		}
		v.kinds[f] = bytecache.NewFormID()
		if info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), f.mediaType()); ok {
			v.encoders[f] = serializer.EncoderForVersion(info.Serializer, gv)
		}
	}
	if _, ok := c.New().(runtime.Unstructured); !ok {
		apiVersion, kind := c.Kind.ToAPIVersionAndKind()
		v.typeMeta = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
	} else {
		v.prover, _ = c.Codec.(Prover)
	}
	return v, nil
}

// Kind is the kind that is served.
func (v *Version) Kind() schema.GroupVersionKind { return v.config.Kind }

// Serves tells whether objects can be had in a format.
func (v *Version) Serves(f Format) bool {
	if f == Protobuf && v.typeMeta == nil {
		return false // custom resources have no protobuf form
	}
	return v.encoders[f] != nil
}

// Decode returns the object of an entry as the server's storage does, with the
// given resourceVersion. It is the caller's.
func (v *Version) Decode(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	return v.decode(e, e.Data(), revision)
}

// decode is Decode of the bytes that an entry has, or of a part of them.
func (v *Version) decode(e *bytecache.Entry, data []byte, revision int64) (runtime.Object, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	obj, _, err := v.config.Codec.Decode(data, nil, v.config.New())
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.Key, err)
	}
	if err := v.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		return nil, fmt.Errorf("set the resourceVersion of %s: %w", e.Key, err)
	}
	return obj, nil
}

// Render encodes the object of an entry with a resourceVersion that need not be
// the entry's, as in the event of a deletion. Nothing is kept.
func (v *Version) Render(e *bytecache.Entry, f Format, revision int64) ([]byte, error) {
	if f == JSON && revision > 0 {
		if m, ok := v.identical(e); ok {
			return splice(nil, e, func(dst, stored []byte) ([]byte, error) {
				return appendJSONSpliced(dst, stored, m.at(), revision), nil
			})
		}
	}
	var buffer bytes.Buffer
	err := v.render(&buffer, e, f, revision)
	return buffer.Bytes(), err
}

func (v *Version) render(to *bytes.Buffer, e *bytecache.Entry, f Format, revision int64) error {
	var obj runtime.Object
	var err error
	if gv, ok := f.metadata(); ok {
		obj, err = v.partial(e, revision, gv)
	} else {
		obj, err = v.Decode(e, revision)
	}
	if err != nil {
		return err
	}
	if v.encoders[f] == nil {
		return fmt.Errorf("%s is not served as %s", v.config.Kind, f.mediaType())
	}
	if err := v.encoders[f].Encode(obj, to); err != nil {
		return fmt.Errorf("encode %s: %w", e.Key, err)
	}
	return nil
}

// form is what is known of an entry in a format: the whole rendered object, or nil
// where stored bytes are sent, and their mark.
type form struct {
	rendered []byte
	mark     mark
}

func (v *Version) form(e *bytecache.Entry, f Format) (form, error) {
	if m, ok := e.Mark(v.kinds[f]); ok {
		return form{mark: mark(m)}, nil
	}
	data, err := e.Form(v.config.Budget, v.kinds[f], func(e *bytecache.Entry) ([]byte, error) { return v.prove(e, f) })
	switch {
	case errors.Is(err, errMarked):
		m, _ := e.Mark(v.kinds[f])
		return form{mark: mark(m)}, nil
	case err != nil:
		return form{}, err
	case !isMark(data):
		return form{rendered: data}, nil
	default:
		return form{mark: readMark(data)}, nil
	}
}

// opened are buffers for the bytes of entries that are held compressed. A pointer is
// what a pool takes without allocating.
var opened = sync.Pool{New: func() any { return new([]byte) }}

// rendering are buffers for what is rendered, which a mark or a copy is kept of.
var rendering = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxOpened is the size beyond which a buffer is not kept.
const maxOpened = 256 << 10

// splice calls add with the stored bytes of an entry, which are for the call only.
func splice(dst []byte, e *bytecache.Entry, add func(dst, stored []byte) ([]byte, error)) ([]byte, error) {
	if stored := e.Plain(); stored != nil {
		return add(dst, stored)
	}
	buffer := opened.Get().(*[]byte)
	stored, grown := e.DataInto(*buffer)
	dst, err := add(dst, stored)
	if cap(grown) > maxOpened {
		grown = nil
	}
	*buffer = grown
	opened.Put(buffer)
	return dst, err
}

// splicedPlace finds what a mark says is there.
func splicedPlace(stored []byte) (place, error) {
	p, ok := findPlace(stored)
	if !ok {
		return place{}, errNotProtobuf
	}
	return p, nil
}

// errMarked is how prove says that it has left its result on the entry.
var errMarked = errors.New("marked")

// mark notes that the stored bytes are what is sent: on the entry, or as a form
// where the entry has no room.
func (v *Version) mark(e *bytecache.Entry, f Format, m mark) ([]byte, error) {
	if e.SetMark(v.kinds[f], uint32(m)) {
		return nil, errMarked
	}
	return m.bytes(), nil
}

// identical returns the mark of JSON that is sent as it is stored, if that can be told
// without decoding it.
func (v *Version) identical(e *bytecache.Entry) (m mark, ok bool) {
	if v.prover == nil || e.Err != nil || v.encoders[JSON] == nil {
		return 0, false
	}
	if m, ok := e.Mark(v.kinds[JSON]); ok {
		return mark(m), true
	}
	_, err := splice(nil, e, func(_, stored []byte) ([]byte, error) {
		if v.prover.Identical(stored) {
			var at int
			at, ok = findJSONPlace(stored)
			m = jsonMark(at, bytes.HasSuffix(stored, newline))
		}
		return nil, nil
	})
	return m, ok && err == nil
}

// prove renders an entry, and returns a mark instead if the stored bytes will do.
func (v *Version) prove(e *bytecache.Entry, f Format) ([]byte, error) {
	if f == JSON && e.Revision > 0 {
		if m, ok := v.identical(e); ok {
			return v.mark(e, f, m)
		}
	}
	if gv, ok := f.metadata(); ok && f.json() {
		if rendered, ok := v.partialOfJSON(e, gv); ok {
			return rendered, nil
		}
	}
	buffer := rendering.Get().(*bytes.Buffer)
	defer func() {
		if buffer.Cap() <= maxOpened {
			buffer.Reset()
			rendering.Put(buffer)
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
			p, _ := findPlace(stored) // is found again quickly
			return v.mark(e, f, protobufMark(p.rawSize(digitsOf(e.Revision))))
		}
	case JSON:
		if v.typeMeta != nil || len(rendered) != e.Size()+splicedJSONSize(e.Revision) {
			break
		}
		stored := e.Data()
		at, ok := findJSONPlace(stored)
		if ok && bytes.Equal(appendJSONSpliced(make([]byte, 0, len(rendered)), stored, at, e.Revision), rendered) {
			return v.mark(e, f, jsonMark(at, bytes.HasSuffix(stored, newline)))
		}
	}
	return bytes.Clone(rendered), nil
}

// AppendObject appends the whole body of a GET.
func (v *Version) AppendObject(dst []byte, e *bytecache.Entry, f Format) ([]byte, error) {
	form, err := v.form(e, f)
	switch {
	case err != nil:
		return dst, err
	case form.rendered != nil:
		return append(dst, form.rendered...), nil
	default:
		return splice(dst, e, func(dst, stored []byte) ([]byte, error) {
			if f == Protobuf {
				p, err := splicedPlace(stored)
				if err != nil {
					return dst, err
				}
				var digits [20]byte
				return p.appendObject(dst, strconv.AppendInt(digits[:0], e.Revision, 10)), nil
			}
			return appendJSONSpliced(dst, stored, form.mark.at(), e.Revision), nil
		})
	}
}

// item returns the part of a rendered object that stands in a list. head is what
// comes before it.
func (v *Version) item(e *bytecache.Entry, rendered []byte, f Format) (head string, item []byte, err error) {
	switch {
	case !f.json():
		open, ok := openEnvelope(rendered)
		if !ok {
			return "", nil, errNotProtobuf
		}
		return "", open.raw, nil
	case f == JSON && v.typeMeta != nil:
		return v.items.of(v, e, rendered)
	default:
		return "", bytes.TrimSuffix(rendered, newline), nil
	}
}

var newline = []byte("\n")

// AppendItem appends an object as it stands in a list: the JSON value, or the
// protobuf message without envelope, tag and length.
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
		dst, err := splice(dst, e, func(dst, stored []byte) ([]byte, error) {
			return appendJSONSpliced(dst, stored, form.mark.at(), e.Revision), nil
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

// appendRaw appends the message of an entry that is sent as it is stored.
func appendRaw(dst []byte, e *bytecache.Entry) ([]byte, error) {
	return splice(dst, e, func(dst, stored []byte) ([]byte, error) {
		p, err := splicedPlace(stored)
		if err != nil {
			return dst, err
		}
		var digits [20]byte
		return p.appendRaw(dst, strconv.AppendInt(digits[:0], e.Revision, 10)), nil
	})
}

// ItemSize returns the size of what AppendItem appends.
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
		return e.Size() - form.mark.newlines() + splicedJSONSize(e.Revision), nil
	}
}
