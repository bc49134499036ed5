package reads

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/render"
)

// List returns the handler of LIST. The fallback also gets WATCH requests.
func (h *Handlers) List(fallback http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		began := time.Now()
		traced, span := startSpan(req, "List")
		served := h.list(w, traced)
		endSpan(span, served)
		h.config.Observe("list", served)
		if served {
			return
		}
		if time.Since(began) >= h.config.Patience {
			// The cache is behind, and the fallback would wait for it again.
			req = req.WithContext(etcdstore.WithoutCacheWait(req.Context()))
		}
		fallback(w, req)
	}
}

// list returns false, with nothing written, if the fallback must answer.
func (h *Handlers) list(w http.ResponseWriter, req *http.Request) bool {
	if !servable(req) {
		return false
	}
	c := h.negotiate(req)
	if !c.served || c.partial() && !c.list {
		return false
	}
	p, ok := h.planList(req)
	if !ok {
		return false
	}
	ctx := req.Context()
	found, ok := h.match(ctx, &p)
	if !ok {
		return false
	}
	if h.knownUnencodable(found) {
		return false
	}
	meta, ok := h.listMeta(&p, found)
	if !ok {
		return false
	}
	h.config.Cache.Reads().CountList(found.index, found.examined, found.count)
	if found.more && found.snapshot != nil {
		h.config.Cache.Pin(found.snapshot)
	}
	if !c.table.Empty() {
		return h.writeTable(w, req, c, found, meta)
	}
	return h.writeList(w, req, c, found, meta)
}

// listMeta returns the metadata of the list.
func (h *Handlers) listMeta(p *plan, found *listResult) (render.ListMeta, bool) {
	token, remaining, err := storage.PrepareContinueToken(found.last, p.tokenPrefix, found.revision, found.total, found.more, p.options)
	return render.ListMeta{Revision: found.revision, Continue: token, Remaining: remaining}, err == nil
}

// snapshotFor returns the snapshot from which a plan is answered, at the revision least or
// later.
func (h *Handlers) snapshotFor(ctx context.Context, p *plan, least int64) (*bytecache.Snapshot, bool) {
	if p.exact != 0 {
		return h.config.Cache.SnapshotAt(p.exact)
	}
	snapshot, err := h.config.Cache.Snapshot(ctx)
	// The revision may be lower if etcd was restored from a backup.
	return snapshot, err == nil && snapshot.Revision >= least
}

// awaitRevision waits until the cache has the revision that a plan requires, and returns
// it.
func (h *Handlers) awaitRevision(ctx context.Context, p *plan) (int64, bool) {
	switch {
	case p.exact != 0:
		if h.config.CompactRevision != nil && p.exact <= h.config.CompactRevision() {
			return 0, false
		}
		return p.exact, h.config.Cache.Load(ctx) == nil && h.awaitExisting(ctx, p.exact)
	case p.newest:
		newest, ok := h.newest(ctx)
		ok = ok && h.await(ctx, newest)
		h.config.Cache.Reads().CountConsistent(ok)
		return newest, ok
	}
	return p.atLeast, h.awaitExisting(ctx, p.atLeast)
}

// writeList sends the matched objects. It returns false, with nothing written, if one of
// them cannot be encoded.
func (h *Handlers) writeList(w http.ResponseWriter, req *http.Request, c choice, found *listResult, meta render.ListMeta) bool {
	envelope, err := h.config.Version.List(meta, c.format)
	if err != nil {
		return false
	}
	if found.count == 0 {
		writeWhole(w, req, c.contentType, envelope.Empty)
		return true
	}
	h.blocks.init()
	inBlocks := !found.selected && found.count >= minBlockObjects
	measured, err := h.measureItems(req.Context(), found, c.format, inBlocks)
	if err != nil {
		return false
	}
	items := &itemWriter{version: h.config.Version, format: c.format, protobuf: c.format%2 == 1}
	compress := acceptsGzip(req) && envelope.Size(measured) > gzipThreshold
	if compress && !found.selected {
		return h.writeBlocks(w, req, c, found, envelope, items, measured)
	}
	s := &stream{ctx: req.Context(), w: w, buffer: newBuffer(), contentType: c.contentType, compress: compress}
	defer s.free()
	s.bytes = envelope.AppendOpen(s.bytes, measured)
	if err = h.writeParts(s, items, found, inBlocks); err == nil {
		s.bytes = append(s.bytes, envelope.Tail...)
		err = s.close()
	}
	return s.finish(err)
}

// itemWriter appends the items of a list with their separators.
type itemWriter struct {
	version  *render.Version
	format   render.Format
	protobuf bool
}

func (b *itemWriter) append(dst []byte, e *bytecache.Entry, first bool) ([]byte, error) {
	if b.protobuf {
		return b.version.AppendFramed(dst, e, b.format)
	}
	if !first {
		dst = append(dst, ',')
	}
	return b.version.AppendItem(dst, e, b.format)
}

// maxMeasured is the size up to which a JSON list is encoded before its first byte is
// written.
const maxMeasured = 8 << 20

// measureItems returns the size of the items with their frames or commas. It encodes items
// that are not cached, so that errors occur before anything is written. A protobuf list
// begins with its size. Of a JSON list only a part is measured, because the encoding of a
// long one might be dropped from the cache before it is written.
func (h *Handlers) measureItems(ctx context.Context, found *listResult, f render.Format, inBlocks bool) (size int64, failed error) {
	protobuf, first := f%2 == 1, true
	eachPart(found, func(part []*bytecache.Entry) bool {
		if failed = ctx.Err(); failed != nil {
			return false
		}
		style := blockStyle{format: f, first: first, incarnation: found.incarnation()}
		first = false
		if inBlocks {
			if data, ok := h.blocks.cached(h.blocks.id(part, style)); ok {
				size += int64(len(data))
				return protobuf || size < maxMeasured
			}
		}
		for i, e := range part {
			var item int
			if item, failed = h.config.Version.ItemSize(e, f); failed != nil {
				return false
			}
			if protobuf {
				size += render.FrameSize(item)
				continue
			}
			if i > 0 || !style.first {
				size++ // the comma
			}
			if size += int64(item); size >= maxMeasured {
				return false
			}
		}
		return true
	})
	return size, failed
}

// knownUnencodable reports whether a list contains the object that broke off an earlier
// response. The fallback then returns the error.
func (h *Handlers) knownUnencodable(found *listResult) bool {
	broken := h.unencodable.Load()
	if broken == nil {
		return false
	}
	seen := false
	found.each(func(e *bytecache.Entry) bool {
		seen = e == broken
		return !seen
	})
	return seen
}
