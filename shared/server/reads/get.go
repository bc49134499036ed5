package reads

import (
	"context"
	"net/http"
	"strings"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/storage/bytecache"
)

// Get returns the handler of GET for one object.
func (h *Handlers) Get(fallback http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		traced, span := startSpan(req, "Get")
		served := h.get(w, traced)
		endSpan(span, served)
		h.config.Observe("get", served)
		if !served {
			fallback(w, req)
		}
	}
}

// get returns false, with nothing written, if the fallback must answer.
func (h *Handlers) get(w http.ResponseWriter, req *http.Request) bool {
	if !servable(req) {
		return false
	}
	info, ok := requestInfo(req)
	if !ok {
		return false
	}
	key, ok := h.key(info.Namespace, info.Name)
	if !ok {
		return false
	}
	c := h.negotiate(req)
	if !c.served || c.list {
		return false
	}
	version, ok := h.getVersion(req)
	if !ok {
		return false
	}
	entry := h.find(req.Context(), key, version)
	if entry == nil {
		return false
	}
	if !c.table.Empty() {
		return h.getTable(w, req, c, entry)
	}
	buffer := newBuffer()
	defer buffer.free()
	body, err := h.config.Version.AppendObject(buffer.bytes, entry, c.format)
	buffer.bytes = body
	if err != nil {
		return false
	}
	writeWhole(w, req, c.contentType, body)
	return true
}

// getVersion returns the resourceVersion parameter of a GET; ok is false if there are
// parameters for the fallback.
func (h *Handlers) getVersion(req *http.Request) (string, bool) {
	if req.URL.RawQuery == "" {
		return "", true
	}
	// Informers and kubelets send this parameter alone. Digits need no unescaping.
	if version, ok := strings.CutPrefix(req.URL.RawQuery, "resourceVersion="); ok && version != "" && strings.Trim(version, "0123456789") == "" {
		return version, true
	}
	values := req.URL.Query()
	if len(values["export"]) > 0 {
		return "", false
	}
	var options metav1.GetOptions
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(values, h.config.Scope.MetaGroupVersion, &options); err != nil {
		return "", false
	}
	return options.ResourceVersion, true
}

// find returns the entry of a key at a sufficient revision, nil if the fallback must look
// for it.
func (h *Handlers) find(ctx context.Context, key, resourceVersion string) *bytecache.Entry {
	want, err := h.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return nil
	}
	if resourceVersion != "" {
		if !h.awaitExisting(ctx, int64(want)) {
			return nil
		}
		return h.cached(ctx, key)
	}
	// Asking etcd for its revision is cheaper than asking for that of a key. It suffices if
	// the cache is up to date, which is likely if it was at the last request.
	if h.caughtUp.Load() {
		newest, ok := h.newest(ctx)
		if !ok {
			return nil
		}
		if entry, revision, err := h.config.Cache.Get(ctx, key); err != nil || revision >= newest {
			return entry
		}
		h.caughtUp.Store(false)
	}
	before := h.config.Cache.Revision()
	confirmed, err := h.config.Consistency.Confirm(ctx, key)
	if err != nil || confirmed.ModRevision == 0 || confirmed.Revision < before {
		return nil
	}
	if h.config.Cache.Revision() >= confirmed.Revision {
		h.caughtUp.Store(true)
	}
	entry := h.cached(ctx, key)
	if entry != nil && entry.Revision >= confirmed.ModRevision {
		return entry
	}
	// The cache is behind, or the object has been deleted since.
	if !h.await(ctx, confirmed.ModRevision) {
		return nil
	}
	if entry = h.cached(ctx, key); entry != nil && entry.Revision >= confirmed.ModRevision {
		return entry
	}
	return nil
}

func (h *Handlers) cached(ctx context.Context, key string) *bytecache.Entry {
	entry, _, err := h.config.Cache.Get(ctx, key)
	if err != nil {
		return nil
	}
	return entry
}
