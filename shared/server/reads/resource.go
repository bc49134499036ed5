package reads

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/render"
)

// Resource serves all reads of one resource in one version. It is safe for concurrent use.
type Resource struct {
	*Handlers
	store *etcdstore.Store
}

// NewResource returns the handlers for the reads of a resource with the given scope. It
// returns nil if the objects are not served as they are stored, or if their storage has no
// cache.
func NewResource(resource rest.Storage, scope *handlers.RequestScope, namespaced bool) (*Resource, error) {
	store, ok := plainStore(resource)
	if !ok {
		return nil, nil
	}
	stored, ok := store.Storage.Storage.(*etcdstore.Store)
	if !ok || stored.Cache() == nil {
		return nil, nil
	}
	cache := stored.Cache()
	if !hasPlainKeys(store, namespaced) {
		return nil, nil
	}
	predicate := store.PredicateFunc(labels.Everything(), fields.Everything())
	_, custom := store.NewFunc().(runtime.Unstructured)
	version, err := render.New(render.Config{
		Codec: stored.Codec(), New: store.NewFunc, NewList: store.NewListFunc,
		Serializer: scope.Serializer, Kind: scope.Kind,
		Attributes: predicate.GetAttrs,
		Budget:     cache.Space().Budget(),
	})
	if err != nil {
		return nil, fmt.Errorf("byte reads of %s: %w", scope.Resource, err)
	}
	h, err := New(Config{
		Cache: cache, Version: version, Scope: scope, Consistency: stored.Prober(),
		Prefix:     strings.TrimSuffix(cache.Prefix(), "/"),
		Namespaced: namespaced, Uncached: stored.Uncached(), CompactRevision: stored.CompactRevision,
		OwnFields: custom, IndexFields: predicate.IndexFields,
	})
	if err != nil {
		return nil, fmt.Errorf("byte reads of %s: %w", scope.Resource, err)
	}
	return &Resource{Handlers: h, store: stored}, nil
}

// hasPlainKeys reports whether the keys of a store are those that reads expect: the
// collection's key, the namespace if there is one, and the name.
func hasPlainKeys(store *registry.Store, namespaced bool) bool {
	ctx := request.NewContext()
	root, below := strings.TrimSuffix(store.KeyRootFunc(ctx), "/"), "/name"
	if namespaced {
		ctx, below = request.WithNamespace(ctx, "namespace"), "/namespace/name"
	}
	key, err := store.KeyFunc(ctx, "name")
	return err == nil && key == root+below
}

// ListAndWatch returns the handler of a path that serves LIST and WATCH, which a parameter
// selects; or, with forced, of a deprecated path that serves only WATCH. The other
// arguments are as in WatchConfig. Call it once for all paths of a resource, because
// watches share their frames only within one handler.
func (r *Resource) ListAndWatch(minRequestTimeout time.Duration, forced bool, fallback http.HandlerFunc) http.HandlerFunc {
	if !forced {
		fallback = r.List(fallback)
	}
	watch, err := r.Watch(WatchConfig{Source: r.store.Watches(), MinRequestTimeout: minRequestTimeout, Forced: forced}, fallback)
	if err != nil {
		panic(err) // NewResource has taken the cache from this store
	}
	return watch
}
