package render

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"triune.dev/shared/storage/bytecache"
)

// Format is an encoding of an object.
type Format uint8

// The formats that are rendered once for each entry and shared by all responses.
const (
	JSON Format = iota
	Protobuf
	// The Metadata formats are a PartialObjectMetadata of meta.k8s.io/v1, the MetadataBeta
	// formats one of v1beta1.
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

// metadata returns the version of a PartialObjectMetadata format; ok is false for other
// formats.
func (f Format) metadata() (schema.GroupVersion, bool) {
	switch f {
	case MetadataJSON, MetadataProtobuf:
		return metav1.SchemeGroupVersion, true
	case MetadataBetaJSON, MetadataBetaProtobuf:
		return metav1beta1.SchemeGroupVersion, true
	}
	return schema.GroupVersion{}, false
}

// A Prover is a Codec of custom resources that can recognize stored bytes that are sent as
// they are, without decoding them. It is safe for concurrent use.
type Prover interface {
	// Identical reports whether stored has no resourceVersion, and decoding it and encoding
	// it as JSON, with a final newline, yields the same bytes. It may return false if that
	// is unknown.
	Identical(stored []byte) bool
}

// Config describes how one resource is served in one version.
type Config struct {
	// Codec is the storage's codec. It decodes stored objects into the internal version,
	// with defaults. It may be a Prover. Required.
	Codec runtime.Codec
	// New and NewList return empty objects to decode into. Required.
	New, NewList func() runtime.Object
	// Serializer and Kind are those of the request scope. Required.
	Serializer runtime.NegotiatedSerializer
	Kind       schema.GroupVersionKind
	// Attributes is the storage's function for the labels and selectable fields of a
	// decoded object. Required for selectors.
	Attributes storage.AttrFunc
	// Budget bounds the cached rendered objects. Required; use the budget of the space.
	Budget *bytecache.Budget
}

// Version encodes the entries of one resource in one version. It is safe for concurrent
// use.
//
// Its marks and forms on entries are valid for this Version only. When anything changes
// that affects the encoding, such as the schema of a custom resource, make another Version.
type Version struct {
	config    Config
	versioner storage.APIObjectVersioner
	encoders  [formats]runtime.Encoder // nil where the media type is not served
	formIDs   [formats]bytecache.FormID
	// typeMeta is the prefix of the JSON of every object of a built-in kind, nil for custom
	// resources.
	typeMeta []byte
	// prover is nil if objects must be decoded.
	prover Prover
	// itemStyle is how objects of a built-in kind are encoded in a list.
	itemStyle itemStyle
	labels    Labels
}

// New returns a Version.
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
		v.formIDs[f] = bytecache.NewFormID()
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

// Kind returns the kind that is served.
func (v *Version) Kind() schema.GroupVersionKind { return v.config.Kind }

// Serves reports whether a format is served.
func (v *Version) Serves(f Format) bool {
	if f == Protobuf && v.typeMeta == nil {
		return false // custom resources have no protobuf form
	}
	return v.encoders[f] != nil
}

// Decode returns the object of an entry, decoded as by the server's storage, with the given
// resourceVersion. The caller owns the object.
func (v *Version) Decode(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	return v.decode(e, e.Data(), revision)
}

// decode is Decode for the bytes of an entry, or for a part of them.
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

// Render encodes the object of an entry with a resourceVersion that may differ from the
// entry's, as in a deletion event. The result is not cached.
func (v *Version) Render(e *bytecache.Entry, f Format, revision int64) ([]byte, error) {
	if f == JSON && revision > 0 {
		if m, ok := v.proveIdentical(e); ok {
			return withData(nil, e, func(dst, stored []byte) ([]byte, error) {
				return appendJSON(dst, stored, m.at(), revision), nil
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

// form is the cached form of an entry in a format: the rendered object, or nil and a mark
// if the stored bytes are sent.
type form struct {
	rendered []byte
	mark     mark
}

func (v *Version) form(e *bytecache.Entry, f Format) (form, error) {
	if m, ok := e.Mark(v.formIDs[f]); ok {
		return form{mark: mark(m)}, nil
	}
	data, err := e.Form(v.config.Budget, v.formIDs[f], func(e *bytecache.Entry) ([]byte, error) { return v.renderOrMark(e, f) })
	switch {
	case errors.Is(err, errMarked):
		m, _ := e.Mark(v.formIDs[f])
		return form{mark: mark(m)}, nil
	case err != nil:
		return form{}, err
	case !isMark(data):
		return form{rendered: data}, nil
	default:
		return form{mark: readMark(data)}, nil
	}
}

// dataBuffers are buffers for the decompressed bytes of entries. The pool holds pointers,
// which do not allocate.
var dataBuffers = sync.Pool{New: func() any { return new([]byte) }}

// renderBuffers are buffers for rendered objects.
var renderBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledBuffer is the size beyond which a buffer is not returned to its pool.
const maxPooledBuffer = 256 << 10

// withData calls add with the stored bytes of an entry, which are valid during the call
// only.
func withData(dst []byte, e *bytecache.Entry, add func(dst, stored []byte) ([]byte, error)) ([]byte, error) {
	if stored := e.Plain(); stored != nil {
		return add(dst, stored)
	}
	buffer := dataBuffers.Get().(*[]byte)
	stored, grown := e.DataInto(*buffer)
	dst, err := add(dst, stored)
	if cap(grown) > maxPooledBuffer {
		grown = nil
	}
	*buffer = grown
	dataBuffers.Put(buffer)
	return dst, err
}
