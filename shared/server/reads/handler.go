package reads

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/readindex"
	"triune.dev/shared/storage/render"
)

// Consistency returns current revisions of etcd. *readindex.Prober implements it. It is
// safe for concurrent use; its errors are those of etcd or of the context.
type Consistency interface {
	// Confirm returns the mod revision of a key at some time after the call began.
	Confirm(ctx context.Context, key string) (readindex.Confirmed, error)
	// Revision returns the revision of etcd at some time after the call began.
	Revision(ctx context.Context) (int64, error)
}

// Config describes a resource and how it is served. Fields are required unless they say
// otherwise.
type Config struct {
	// Cache holds the objects, Version encodes them.
	Cache   *bytecache.Cache
	Version *render.Version
	// Scope is the scope of upstream's handlers for the resource.
	Scope       *handlers.RequestScope
	Consistency Consistency
	// Prefix is the etcd key of the collection, without a final slash unless the resource's
	// own prefix has one: "/registry/pods".
	Prefix     string
	Namespaced bool
	// OwnFields says that the selectable fields are those of Version, not of Cache.
	OwnFields bool
	// IndexFields are those of the resource's storage.SelectionPredicate.
	IndexFields []string
	// Uncached is explained at etcdstore.Config.
	Uncached bool
	// CompactRevision returns the newest known compacted revision; optional. Compacted
	// revisions are not served even if they are still cached.
	CompactRevision func() int64
	// Observe is called for each request, and reports whether it was answered from bytes or
	// by the fallback; optional. The verb is "get" or "list"; a "list" may be a watch.
	Observe func(verb string, fromBytes bool)
	// Patience bounds the wait for a revision. The default is 3 s, as in kube-apiserver.
	Patience time.Duration
}

// Handlers serve the reads of one resource in one version. They are safe for concurrent
// use.
type Handlers struct {
	config    Config
	space     *bytecache.Space
	versioner storage.APIObjectVersioner
	ownFields bytecache.FormID
	choices   choiceCache
	blocks    blockCache
	counts    counts
	rows      rowCache
	// caughtUp reports that the cache had the revision of etcd at the last check.
	caughtUp atomic.Bool
	// unencodable is an object that could not be encoded in the middle of a response.
	unencodable atomic.Pointer[bytecache.Entry]
}

// New returns Handlers.
func New(c Config) (*Handlers, error) {
	if c.Cache == nil || c.Version == nil || c.Scope == nil || c.Consistency == nil || c.Prefix == "" {
		return nil, errors.New("reads: a cache, a version, a scope, a source of revisions and a prefix are required")
	}
	if want := collection(c.Prefix); c.Cache.Prefix() != want {
		return nil, fmt.Errorf("reads: the cache is that of %s, not of %s", c.Cache.Prefix(), want)
	}
	if c.Observe == nil {
		c.Observe = func(string, bool) {}
	}
	if c.Patience == 0 {
		c.Patience = 3 * time.Second
	}
	return &Handlers{config: c, space: c.Cache.Space(), ownFields: bytecache.NewFormID()}, nil
}

// servable reports whether a request may be served here. Other requests need upstream's
// handlers.
func servable(req *http.Request) bool {
	if req.Method != http.MethodGet {
		return false
	}
	// The audit log needs the object itself.
	ac := audit.AuditContextFrom(req.Context())
	return ac == nil || !ac.Enabled() || ac.GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// key returns the etcd key of an object, as registry.Store does. ok is false if the name is
// invalid.
func (h *Handlers) key(namespace, name string) (string, bool) {
	if name == "" || len(content.IsPathSegmentName(name)) != 0 {
		return "", false
	}
	root, ok := h.root(namespace)
	if !ok || h.config.Namespaced && namespace == "" {
		return "", false
	}
	return root + "/" + name, true
}

// root returns the etcd key of a collection, without a final slash.
func (h *Handlers) root(namespace string) (string, bool) {
	if !h.config.Namespaced || namespace == "" {
		return h.config.Prefix, true
	}
	if len(content.IsPathSegmentName(namespace)) != 0 {
		return "", false
	}
	return h.config.Prefix + "/" + namespace, true
}

// requestInfo returns the request info; ok is false for subresources.
func requestInfo(req *http.Request) (*request.RequestInfo, bool) {
	info, ok := request.RequestInfoFrom(req.Context())
	return info, ok && info.Subresource == ""
}

// await waits until the cache has a revision, for at most Patience.
func (h *Handlers) await(ctx context.Context, revision int64) bool {
	if h.config.Cache.Revision() >= revision {
		h.config.Cache.Reads().CountWait(0)
		return true
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, h.config.Patience)
	defer cancel()
	err := h.config.Cache.Await(ctx, revision)
	h.config.Cache.Reads().CountWait(time.Since(began))
	return err == nil
}

// newest returns the revision of etcd. ok is false if it is unknown, or older than the
// cache. In the latter case etcd was replaced by a restored backup; the event log will
// report that, and until then no response from the cache is fresh.
func (h *Handlers) newest(ctx context.Context) (revision int64, ok bool) {
	before := h.config.Cache.Revision()
	revision, err := h.config.Consistency.Revision(ctx)
	return revision, err == nil && revision >= before
}

// awaitExisting is await for a revision that a client names. The fallback waits for, and
// refuses, revisions that etcd does not have yet.
func (h *Handlers) awaitExisting(ctx context.Context, revision int64) bool {
	if h.config.Cache.Revision() >= revision {
		return true
	}
	newest, err := h.config.Consistency.Revision(ctx)
	return err == nil && newest >= revision && h.await(ctx, revision)
}

// collection returns the key prefix of a collection.
func collection(root string) string {
	if strings.HasSuffix(root, "/") {
		return root
	}
	return root + "/"
}
