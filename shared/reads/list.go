package reads

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/encoded"
	"triune.dev/shared/etcdstore"
)

// List returns the handler of LIST. The fallback also gets what asks for a watch.
func (h *Handlers) List(fallback http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		began := time.Now()
		served := h.list(w, req)
		h.config.Observe("list", served)
		if served {
			return
		}
		if time.Since(began) >= h.config.Patience {
			// The cache is behind, which the fallback would wait for as well.
			req = req.WithContext(etcdstore.OutOfPatience(req.Context()))
		}
		fallback(w, req)
	}
}

// list returns false, with nothing written, where the fallback is to answer.
func (h *Handlers) list(w http.ResponseWriter, req *http.Request) bool {
	if !plain(req) {
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
	if h.knownBroken(found) {
		return false
	}
	meta, ok := h.describe(&p, found)
	if !ok {
		return false
	}
	if found.more && found.snapshot != nil {
		h.config.Cache.Pin(found.snapshot)
	}
	if !c.table.Empty() {
		return h.writeTable(w, req, c, found, meta)
	}
	return h.writeList(w, req, c, found, meta)
}

// describe makes the metadata of the list.
func (h *Handlers) describe(p *plan, found *matched) (encoded.ListMeta, bool) {
	token, remaining, err := storage.PrepareContinueToken(found.last, p.tokenPrefix, found.revision, found.total, found.more, p.options)
	return encoded.ListMeta{Revision: found.revision, Continue: token, Remaining: remaining}, err == nil
}

// state finds the snapshot that a plan is to be answered from, at a revision or
// later.
func (h *Handlers) state(ctx context.Context, p *plan, least int64) (*bytecache.Snapshot, bool) {
	if p.exact != 0 {
		return h.config.Cache.SnapshotAt(p.exact)
	}
	snapshot, err := h.config.Cache.Snapshot(ctx)
	// An etcd that was restored from a backup begins again.
	return snapshot, err == nil && snapshot.Revision >= least
}

// reach waits until the cache is as new as a plan demands, and returns the revision
// that this takes.
func (h *Handlers) reach(ctx context.Context, p *plan) (int64, bool) {
	switch {
	case p.exact != 0:
		if h.config.CompactRevision != nil && p.exact <= h.config.CompactRevision() {
			return 0, false
		}
		return p.exact, h.config.Cache.Load(ctx) == nil && h.awaitExisting(ctx, p.exact)
	case p.newest:
		newest, ok := h.newest(ctx)
		return newest, ok && h.await(ctx, newest)
	}
	return p.atLeast, h.awaitExisting(ctx, p.atLeast)
}

// writeList sends the matched objects. It returns false, with nothing written, if
// one of them cannot be encoded.
func (h *Handlers) writeList(w http.ResponseWriter, req *http.Request, c choice, found *matched, meta encoded.ListMeta) bool {
	envelope, err := h.config.Version.List(meta, c.format)
	if err != nil {
		return false
	}
	if found.count == 0 {
		writeWhole(w, req, c.contentType, envelope.Empty)
		return true
	}
	h.blocks.init()
	inBlocks := !found.selected && found.count >= blocksFrom
	measured, err := h.measure(req.Context(), found, c.format, inBlocks)
	if err != nil {
		return false
	}
	body := &body{version: h.config.Version, format: c.format, protobuf: c.format%2 == 1}
	compress := acceptsGzip(req) && envelope.Size(measured) > gzipThreshold
	if compress && !found.selected {
		return h.writeBlocks(w, req, c, found, envelope, body, measured)
	}
	s := &stream{ctx: req.Context(), w: w, buffer: newBuffer(), contentType: c.contentType, compress: compress}
	defer s.free()
	s.bytes = envelope.AppendOpen(s.bytes, measured)
	if err = h.writeParts(s, body, found, inBlocks); err == nil {
		s.bytes = append(s.bytes, envelope.Tail...)
		err = s.close()
	}
	return s.finish(err)
}

// body appends the items of a list, with what stands between them.
type body struct {
	version  *encoded.Version
	format   encoded.Format
	protobuf bool
}

func (b *body) append(dst []byte, e *bytecache.Entry, first bool) ([]byte, error) {
	if b.protobuf {
		return b.version.AppendFramed(dst, e, b.format)
	}
	if !first {
		dst = append(dst, ',')
	}
	return b.version.AppendItem(dst, e, b.format)
}

// measureAhead is how much of a JSON list is encoded before its first byte is
// written.
const measureAhead = 8 << 20

// measure returns the size of the items with their frames or commas. It encodes what
// has not been encoded yet, so that what cannot be is found out before anything is
// written. A protobuf list begins with its size; of a long JSON list, what is encoded
// here might no longer be kept when it is written, so the size is that of a part.
func (h *Handlers) measure(ctx context.Context, found *matched, f encoded.Format, inBlocks bool) (size int64, failed error) {
	protobuf, first := f%2 == 1, true
	parts(found, func(part []*bytecache.Entry) bool {
		if failed = ctx.Err(); failed != nil {
			return false
		}
		style := blockStyle{format: f, first: first, history: found.history()}
		first = false
		if inBlocks {
			if data, ok := h.blocks.kept(h.blocks.id(part, style)); ok {
				size += int64(len(data))
				return protobuf || size < measureAhead
			}
		}
		for i, e := range part {
			var item int
			if item, failed = h.config.Version.ItemSize(e, f); failed != nil {
				return false
			}
			if protobuf {
				size += encoded.FrameSize(item)
				continue
			}
			if i > 0 || !style.first {
				size++ // the comma
			}
			if size += int64(item); size >= measureAhead {
				return false
			}
		}
		return true
	})
	return size, failed
}

// knownBroken tells whether a list has an object that is known to have no encoding:
// one whose answer ended in the middle. The next one is upstream's to refuse.
func (h *Handlers) knownBroken(found *matched) bool {
	broken := h.broken.Load()
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
