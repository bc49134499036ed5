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

	"triune.dev/shared/bytecache"
	"triune.dev/shared/encoded"
	"triune.dev/shared/freshness"
)

// Consistency tells what is newest in etcd. *freshness.Prober does. It is safe for
// concurrent use; errors are etcd's or the context's.
type Consistency interface {
	// Confirm returns the mod revision of a key as it is after the call began.
	Confirm(ctx context.Context, key string) (freshness.Confirmed, error)
	// Revision returns etcd's revision, which is not older than the call.
	Revision(ctx context.Context) (int64, error)
}

// Config says what is read, and how it is served.
type Config struct {
	// Cache holds the objects, Version encodes them. Required, as all below is
	// unless it says otherwise.
	Cache   *bytecache.Cache
	Version *encoded.Version
	// Scope is what upstream's handlers of the same resource are given.
	Scope       *handlers.RequestScope
	Consistency Consistency
	// Prefix is the etcd key of the collection without the slash at its end, unless
	// the resource's own prefix has one: "/registry/pods".
	Prefix     string
	Namespaced bool
	// OwnFields: the selectable fields are those of Version, not of the Cache.
	OwnFields bool
	// IndexFields are those of the resource's storage.SelectionPredicate.
	IndexFields []string
	// Uncached is as in etcdstore.Config.
	Uncached bool
	// CompactRevision is the newest compacted revision known; optional. What was
	// compacted is not served, though it may still be known here.
	CompactRevision func() int64
	// Observe is told of each request whether it was answered from bytes or by the
	// fallback; optional. The verb is "get" or "list", which may turn out a watch.
	Observe func(verb string, fromBytes bool)
	// Patience bounds the waiting for a revision; 3 s, as in kube-apiserver, if 0.
	Patience time.Duration
}

// Handlers serve the reads of one resource in one version. It is safe for
// concurrent use.
type Handlers struct {
	config    Config
	space     *bytecache.Space
	versioner storage.APIObjectVersioner
	ownFields bytecache.FormID
	choices   choices
	blocks    blocks
	counts    counts
	tables    tables
	// level: at the last look the cache had all that etcd had.
	level atomic.Bool
	// broken is an object that could not be encoded in the middle of an answer.
	broken atomic.Pointer[bytecache.Entry]
}

// New makes Handlers.
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

// plain tells requests that may be served here from those that need what only
// upstream's handlers do.
func plain(req *http.Request) bool {
	if req.Method != http.MethodGet {
		return false
	}
	// The audit log wants the object itself.
	ac := audit.AuditContextFrom(req.Context())
	return ac == nil || !ac.Enabled() || ac.GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// key is the etcd key of an object, made as registry.Store makes it. ok is false
// where that fails.
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

// root is the etcd key of a collection, without a slash after it.
func (h *Handlers) root(namespace string) (string, bool) {
	if !h.config.Namespaced || namespace == "" {
		return h.config.Prefix, true
	}
	if len(content.IsPathSegmentName(namespace)) != 0 {
		return "", false
	}
	return h.config.Prefix + "/" + namespace, true
}

// requestInfo is the part of a request that names what is read.
func requestInfo(req *http.Request) (*request.RequestInfo, bool) {
	info, ok := request.RequestInfoFrom(req.Context())
	return info, ok && info.Subresource == ""
}

// await waits until the cache has reached a revision, but not for long.
func (h *Handlers) await(ctx context.Context, revision int64) bool {
	if h.config.Cache.Revision() >= revision {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.Patience)
	defer cancel()
	return h.config.Cache.Await(ctx, revision) == nil
}

// newest returns etcd's revision. ok is false where it is not known, or where etcd has gone
// back to before what the cache has: it was replaced by a restored backup, which the event
// log will say in a moment, and until then no answer of the cache is to be called fresh.
func (h *Handlers) newest(ctx context.Context) (revision int64, ok bool) {
	before := h.config.Cache.Revision()
	revision, err := h.config.Consistency.Revision(ctx)
	return revision, err == nil && revision >= before
}

// awaitExisting is await for a revision that a client names. One that etcd does not
// have yet is for the fallback to wait for, and to refuse.
func (h *Handlers) awaitExisting(ctx context.Context, revision int64) bool {
	if h.config.Cache.Revision() >= revision {
		return true
	}
	newest, err := h.config.Consistency.Revision(ctx)
	return err == nil && newest >= revision && h.await(ctx, revision)
}

// collection makes the prefix of the keys of a collection.
func collection(root string) string {
	if strings.HasSuffix(root, "/") {
		return root
	}
	return root + "/"
}
