package reads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

// tableStyle has the properties that determine the rows of a Table, besides the objects.
type tableStyle struct {
	version schema.GroupVersion
	// includeObject is empty for the default, metadata.
	includeObject metav1.IncludeObjectPolicy
	noHeaders     bool
}

func (s tableStyle) options() *metav1.TableOptions {
	return &metav1.TableOptions{IncludeObject: s.includeObject, NoHeaders: s.noHeaders}
}

// tableStyleOf returns the parameters of a Table request.
func tableStyleOf(req *http.Request, version schema.GroupVersion) (tableStyle, bool) {
	s := tableStyle{version: version}
	if req.URL.RawQuery == "" {
		return s, true
	}
	var options metav1.TableOptions
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion, &options); err != nil {
		return s, false
	}
	s.includeObject, s.noHeaders = options.IncludeObject, options.NoHeaders
	return s, len(validation.ValidateTableOptions(&options)) == 0
}

// errRowsNotInOrder says that a printer has not returned one row for each object in order,
// so that rows cannot be made separately.
var errRowsNotInOrder = errors.New("not one row for each object in turn")

// sortedKind is printed in the order of precedence, not of names.
var sortedKind = schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"}

// printsInOrder reports whether the rows of a list are those of its objects in order. This
// is assumed of a printer until it has returned rows in another order.
func (h *Handlers) printsInOrder() bool {
	return h.config.Scope.TableConvertor != nil && h.config.Scope.Kind.GroupKind() != sortedKind && !h.rows.unordered.Load()
}

// convert returns the Table of an object or list, as upstream's handlers do. If objects are
// given, their rows must be in order.
func (h *Handlers) convert(ctx context.Context, obj runtime.Object, s tableStyle, objects []runtime.Object) (*metav1.Table, error) {
	table, err := h.config.Scope.TableConvertor.ConvertToTable(ctx, obj, s.options())
	if err != nil {
		return nil, fmt.Errorf("convert to a table: %w", err)
	}
	if objects != nil && !inOrder(table.Rows, objects) {
		h.rows.unordered.Store(true)
		return nil, errRowsNotInOrder
	}
	for i := range table.Rows {
		if err := h.include(&table.Rows[i].Object, s); err != nil {
			return nil, err
		}
	}
	return table, nil
}

func inOrder(rows []metav1.TableRow, objects []runtime.Object) bool {
	if len(rows) != len(objects) {
		return false
	}
	for i := range rows {
		is, err := meta.Accessor(rows[i].Object.Object)
		if err != nil {
			return false
		}
		want, err := meta.Accessor(objects[i])
		if err != nil || is.GetName() != want.GetName() || is.GetNamespace() != want.GetNamespace() {
			return false
		}
	}
	return true
}

// include replaces the object in a row by the part that the client requested. The bookmark
// that ends the initial events of a watch always has its metadata, which identifies it.
func (h *Handlers) include(object *runtime.RawExtension, s tableStyle) error {
	scope := h.config.Scope
	marked, err := storage.HasInitialEventsEndBookmarkAnnotation(object.Object)
	if err != nil {
		return fmt.Errorf("the object of a row: %w", err)
	}
	switch {
	case s.includeObject == metav1.IncludeObject:
		out, err := scope.Convertor.ConvertToVersion(object.Object, scope.Kind.GroupVersion())
		if err != nil {
			return fmt.Errorf("convert the object of a row: %w", err)
		}
		object.Object = out
	case s.includeObject == metav1.IncludeNone && !marked:
		object.Object = nil
	case s.includeObject == metav1.IncludeMetadata, s.includeObject == "", marked:
		m, err := meta.Accessor(object.Object)
		if err != nil {
			return fmt.Errorf("metadata of a row: %w", err)
		}
		partial := meta.AsPartialObjectMetadata(m)
		partial.SetGroupVersionKind(s.version.WithKind("PartialObjectMetadata"))
		object.Object = partial
	default:
		return fmt.Errorf("unknown includeObject %q", s.includeObject)
	}
	return nil
}

// decodeRow decodes the parts of an object that are printed or sent.
func (h *Handlers) decodeRow(e *bytecache.Entry, revision int64, s tableStyle) (runtime.Object, error) {
	if s.includeObject == metav1.IncludeObject {
		return h.config.Version.Decode(e, revision)
	}
	return h.config.Version.DecodePrinted(e, revision)
}

// encodeTable returns the body of a Table response.
func encodeTable(table *metav1.Table, version schema.GroupVersion) ([]byte, error) {
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, errors.New("no JSON")
	}
	return runtime.Encode(codecs.EncoderForVersion(info.Serializer, version), table)
}

// encodeRow encodes a row. It encodes the object separately, because encoding/json would
// scan nested JSON again. object is the encoded object if that is known, else nil.
func encodeRow(row *metav1.TableRow, object []byte) ([]byte, error) {
	bare := *row
	bare.Object.Object = nil
	out, err := json.Marshal(&bare)
	if err != nil || row.Object.Object == nil {
		return out, err
	}
	before, ok := bytes.CutSuffix(out, []byte("null}"))
	if !ok {
		return json.Marshal(row)
	}
	if object == nil {
		object, err = json.Marshal(row.Object.Object)
	}
	return append(append(before, object...), '}'), err
}

// cachedMetadata returns the encoded object of an entry's row if it is metadata and cached.
func (h *Handlers) cachedMetadata(e *bytecache.Entry, s tableStyle) []byte {
	if s.includeObject != metav1.IncludeMetadata && s.includeObject != "" {
		return nil
	}
	object, _ := h.config.Version.CachedMetadata(e, s.version)
	return object
}

// getTable answers a GET with a Table.
func (h *Handlers) getTable(w http.ResponseWriter, req *http.Request, c choice, e *bytecache.Entry) bool {
	style, ok := tableStyleOf(req, c.table)
	if !ok || h.config.Scope.TableConvertor == nil {
		return false
	}
	obj, err := h.decodeRow(e, e.Revision, style)
	if err != nil {
		return false
	}
	table, err := h.convert(req.Context(), obj, style, nil)
	if err != nil {
		return false
	}
	body, err := encodeTable(table, c.table)
	if err != nil {
		return false
	}
	writeWhole(w, req, c.contentType, body)
	return true
}

// tableEnvelope returns the parts of a Table around its rows, from the Table of a list with
// the same metadata and no items.
func (h *Handlers) tableEnvelope(ctx context.Context, m render.ListMeta, s tableStyle) (empty, head, tail []byte, err error) {
	list, err := h.config.Version.EmptyList(m)
	if err != nil {
		return nil, nil, nil, err
	}
	table, err := h.convert(ctx, list, s, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	if empty, err = encodeTable(table, s.version); err != nil {
		return nil, nil, nil, err
	}
	for _, rows := range []string{`"rows":[]`, `"rows":null`} {
		if at := bytes.LastIndex(empty, []byte(rows)); at >= 0 {
			head = append(bytes.Clone(empty[:at]), `"rows":[`...)
			tail = append([]byte{']'}, empty[at+len(rows):]...)
			return empty, head, tail, nil
		}
	}
	return nil, nil, nil, errRowsNotInOrder
}

// rowBatch is the number of rows that are printed together.
const rowBatch = 64

// writeTable sends the matched objects as a Table.
func (h *Handlers) writeTable(w http.ResponseWriter, req *http.Request, c choice, found *listResult, m render.ListMeta) bool {
	style, ok := tableStyleOf(req, c.table)
	if !ok || !h.printsInOrder() {
		return false
	}
	ctx := req.Context()
	empty, head, tail, err := h.tableEnvelope(ctx, m, style)
	if err != nil {
		return false
	}
	if found.count == 0 {
		writeWhole(w, req, c.contentType, empty)
		return true
	}
	s := &stream{ctx: ctx, w: w, buffer: newBuffer(), contentType: c.contentType, compress: acceptsGzip(req)}
	defer s.free()
	s.bytes = append(s.bytes, head...)
	t := tableWriter{Handlers: h, stream: s, style: style, first: true}
	found.each(func(e *bytecache.Entry) bool {
		t.batch[t.count] = e
		t.count++
		if t.count == rowBatch {
			err = t.send()
		}
		return err == nil
	})
	if err == nil {
		err = t.send()
	}
	if err == nil {
		s.bytes = append(s.bytes, tail...)
		err = s.close()
	}
	return s.finish(err)
}

// tableWriter writes rows in batches.
type tableWriter struct {
	*Handlers
	*stream
	style tableStyle
	batch [rowBatch]*bytecache.Entry
	count int
	first bool
}

func (t *tableWriter) send() error {
	batch := t.batch[:t.count]
	t.count = 0
	var rows [rowBatch][]byte
	if err := t.fillRows(t.ctx, batch, t.style, rows[:len(batch)]); err != nil {
		return err
	}
	for _, row := range rows[:len(batch)] {
		if !t.first {
			t.bytes = append(t.bytes, ',')
		}
		t.first = false
		t.bytes = append(t.bytes, row...)
		if err := t.spill(); err != nil {
			return err
		}
	}
	return nil
}

// fillRows fills in the rows of entries, from the cache where they are still valid.
func (h *Handlers) fillRows(ctx context.Context, entries []*bytecache.Entry, s tableStyle, rows [][]byte) error {
	now := time.Now()
	var missing [rowBatch]int
	count := 0
	for i, e := range entries {
		if rows[i] = h.rows.get(newRowKey(e, e.Revision, s), now); rows[i] == nil {
			missing[count] = i
			count++
		}
	}
	if count == 0 {
		return nil
	}
	objects := make([]runtime.Object, count)
	for at, i := range missing[:count] {
		obj, err := h.decodeRow(entries[i], entries[i].Revision, s)
		if err != nil {
			h.unencodable.Store(entries[i])
			return err
		}
		objects[at] = obj
	}
	until := make([]time.Time, count)
	for at, obj := range objects {
		until[at] = unchangedUntil(obj, now)
	}
	list, err := h.config.Version.ListOf(objects)
	if err != nil {
		return err
	}
	table, err := h.convert(ctx, list, s, objects)
	if err != nil {
		return err
	}
	for at, i := range missing[:count] {
		row, err := encodeRow(&table.Rows[at], h.cachedMetadata(entries[i], s))
		if err != nil {
			return fmt.Errorf("encode the row of %s: %w", entries[i].Key, err)
		}
		rows[i] = row
		h.rows.put(newRowKey(entries[i], entries[i].Revision, s), row, 0, until[at])
	}
	return nil
}
