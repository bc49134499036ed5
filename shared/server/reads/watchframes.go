package reads

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/keywatch"
	"triune.dev/shared/storage/render"
)

// watchMedia is the negotiated encoding of events.
type watchMedia struct {
	format render.Format
	// protobuf says that frames are length-delimited messages, not lines of JSON.
	protobuf    bool
	contentType []string
	// transformed is the requested version of meta.k8s.io if objects are sent as
	// PartialObjectMetadata or, if table is set, as Tables of one row.
	transformed schema.GroupVersion
	table       *rowEnvelope
}

var (
	jsonStream     = []string{runtime.ContentTypeJSON}
	protobufStream = []string{runtime.ContentTypeProtobuf + ";stream=watch"}
)

// media negotiates the encoding. asTable says that m.table is still to be set. ok is false
// if the fallback must answer.
func (ws *watches) media(req *http.Request) (m watchMedia, asTable, ok bool) {
	scope := ws.config.Scope
	options, _, err := negotiation.NegotiateOutputMediaType(req, scope.Serializer, scope)
	if err != nil {
		return m, false, false
	}
	info, err := negotiation.NegotiateOutputMediaTypeStream(req, scope.Serializer, scope)
	if err != nil {
		return m, false, false
	}
	m.format = render.JSON
	if target := options.Convert; target != nil {
		v1, v1beta1 := target.GroupVersion() == metav1.SchemeGroupVersion, target.GroupVersion() == metav1beta1.SchemeGroupVersion
		switch {
		case !v1 && !v1beta1:
			return m, false, false
		case target.Kind == "Table":
			asTable = true
		case target.Kind != "PartialObjectMetadata":
			return m, false, false
		case v1:
			m.format = render.MetadataJSON
		default:
			m.format = render.MetadataBetaJSON
		}
		m.transformed = target.GroupVersion()
	}
	switch info.MediaType {
	case runtime.ContentTypeJSON:
		m.contentType = jsonStream
	case runtime.ContentTypeProtobuf:
		if asTable {
			return m, true, false
		}
		m.format++ // each JSON format is followed by its protobuf one
		m.protobuf, m.contentType = true, protobufStream
	default:
		return m, asTable, false
	}
	return m, asTable, ws.config.Version.Serves(m.format)
}

// The events whose frames are cached with a change.
const (
	added = iota
	modified
	deleted
	eventTypes
	// noEvent is the event for a watch that does not select the change.
	noEvent = -1
)

// shownEntry returns the state of the object that an event shows.
func shownEntry(c *bytecache.Change, event int) *bytecache.Entry {
	if event == deleted {
		return c.Before
	}
	return c.Now
}

var watchTypes = [eventTypes]watch.EventType{added: watch.Added, modified: watch.Modified, deleted: watch.Deleted}

// maxFormats bounds the formats of package render.
const maxFormats = 8

// frames encodes the frames of events. It is safe for concurrent use.
type frames struct {
	version *render.Version
	budget  *bytecache.Budget
	objects objectScope
	formIDs [maxFormats][eventTypes]bytecache.FormID
	renders [maxFormats][eventTypes]func(*bytecache.Change) ([]byte, error)
	// bookmarks has the last bookmark of each format, because many watches are at the same
	// revision.
	bookmarks [maxFormats]bookmarkCache
	// rowEnvelopes are the envelopes of Table rows: tableStyle → *rowEnvelope.
	rowEnvelopes sync.Map
}

// objectScope encodes objects that are not in the cache.
type objectScope struct {
	serializer runtime.NegotiatedSerializer
	version    schema.GroupVersion
}

// bookmarkCache caches the last bookmark.
type bookmarkCache struct{ last atomic.Pointer[bookmarkFrame] }

type bookmarkFrame struct {
	revision int64
	frame    []byte
}

// get returns the bookmark of a revision. The bookmark that ends the initial events is not
// cached.
func (b *bookmarkCache) get(revision int64, end bool, encode func() ([]byte, error)) ([]byte, error) {
	if known := b.last.Load(); !end && known != nil && known.revision == revision {
		return known.frame, nil
	}
	frame, err := encode()
	if err == nil && !end {
		b.last.Store(&bookmarkFrame{revision, frame})
	}
	return frame, err
}

func newFrames(h *Handlers) *frames {
	f := &frames{
		version: h.config.Version, budget: h.space.Budget(),
		objects: objectScope{h.config.Scope.Serializer, h.config.Scope.Kind.GroupVersion()},
	}
	for format := range f.formIDs {
		for event := range eventTypes {
			media := watchMedia{format: render.Format(format), protobuf: format%2 == 1}
			f.formIDs[format][event] = bytecache.NewFormID()
			f.renders[format][event] = func(c *bytecache.Change) ([]byte, error) { return f.render(c, media, event) }
		}
	}
	return f
}

// change returns the frame of a change, which is encoded once for all watches.
func (f *frames) change(c *bytecache.Change, format render.Format, event int) ([]byte, error) {
	return c.Frame(f.budget, f.formIDs[format][event], f.renders[format][event])
}

func (f *frames) render(c *bytecache.Change, m watchMedia, event int) ([]byte, error) {
	b := newFrameBuffer()
	defer b.free()
	var err error
	// The revision of a deletion is that of the change, not of the object as it was.
	if b.bytes, err = f.appendEntry(b.bytes, m, watchTypes[event], shownEntry(c, event), c.Revision); err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(b.bytes)), b.bytes...), nil
}

// appendEntry appends the frame of an event that shows an entry at a revision.
func (f *frames) appendEntry(dst []byte, m watchMedia, event watch.EventType, e *bytecache.Entry, revision int64) ([]byte, error) {
	if e.Revision != revision {
		object, err := f.version.Render(e, m.format, revision)
		if err != nil {
			return dst, err
		}
		return appendFrame(dst, m.protobuf, event, object), nil
	}
	if m.protobuf {
		// The head depends on the size of the object: leave room, then move the object.
		var room [maxProtobufHead]byte
		begin := len(dst)
		at := begin + len(room)
		dst, err := f.version.AppendObject(append(dst, room[:]...), e, m.format)
		if err != nil {
			return dst[:begin], err
		}
		size := len(dst) - at
		head := appendProtobufHead(room[:0], event, size)
		end := copy(dst[begin:], head)
		end += begin
		return dst[:end+copy(dst[end:], dst[at:at+size])], nil
	}
	begin := len(dst)
	dst, err := f.version.AppendObject(appendJSONHead(dst, event), e, m.format)
	if err != nil {
		return dst[:begin], err
	}
	if dst[len(dst)-1] == '\n' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, jsonTail...), nil
}

// object returns the frame of an object that is not in the cache.
func (f *frames) object(m watchMedia, event watch.EventType, obj runtime.Object) ([]byte, error) {
	serializer, version := f.objects.serializer, f.objects.version
	if !m.transformed.Empty() {
		serializer, version = apihelpers.GetMetaInternalVersionCodecs(), m.transformed
	}
	mediaType := runtime.ContentTypeJSON
	if m.protobuf {
		mediaType = runtime.ContentTypeProtobuf
	}
	info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", mediaType)
	}
	data, err := runtime.Encode(serializer.EncoderForVersion(info.Serializer, version), obj)
	if err != nil {
		return nil, fmt.Errorf("encode the object of a %s event: %w", event, err)
	}
	return appendFrame(nil, m.protobuf, event, data), nil
}

// bookmark returns the frame of a bookmark; end is explained in etcdstore.
func (f *frames) bookmark(m watchMedia, r *keywatch.Request, revision int64, end bool) ([]byte, error) {
	return f.bookmarks[m.format].get(revision, end, func() ([]byte, error) {
		obj, err := r.BookmarkObject(revision, end)
		if err != nil {
			return nil, err
		}
		if !m.transformed.Empty() {
			accessor, err := meta.Accessor(obj)
			if err != nil {
				return nil, fmt.Errorf("metadata of a bookmark: %w", err)
			}
			partial := meta.AsPartialObjectMetadata(accessor)
			partial.SetGroupVersionKind(m.transformed.WithKind("PartialObjectMetadata"))
			obj = partial
		}
		return f.object(m, watch.Bookmark, obj)
	})
}

const jsonTail = "}\n"

// appendFrame appends the frame of an encoded object: a metav1.WatchEvent, whose field 1 is
// the type and field 2 the object, a RawExtension with the bytes in field 1.
func appendFrame(dst []byte, protobuf bool, event watch.EventType, object []byte) []byte {
	if protobuf {
		return append(appendProtobufHead(dst, event, len(object)), object...)
	}
	if n := len(object); n > 0 && object[n-1] == '\n' {
		object = object[:n-1]
	}
	return append(append(appendJSONHead(dst, event), object...), jsonTail...)
}

func appendJSONHead(dst []byte, event watch.EventType) []byte {
	return append(append(append(dst, `{"type":"`...), event...), `","object":`...)
}

// maxProtobufHead bounds the size of the protobuf head: the length of the frame, the tag,
// length and bytes of the type, and two tags with lengths.
const maxProtobufHead = 4 + 2 + len(watch.Bookmark) + 2*(1+binary.MaxVarintLen64)

func appendProtobufHead(dst []byte, event watch.EventType, size int) []byte {
	raw := 1 + protowire.SizeVarint(uint64(size)) + size
	length := 2 + len(event) + 1 + protowire.SizeVarint(uint64(raw)) + raw
	dst = binary.BigEndian.AppendUint32(dst, uint32(length))
	dst = append(dst, 1<<3|2, byte(len(event)))
	dst = append(dst, event...)
	dst = binary.AppendUvarint(append(dst, 2<<3|2), uint64(raw))
	return binary.AppendUvarint(append(dst, 1<<3|2), uint64(size))
}
