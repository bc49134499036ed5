package etcdstore

import (
	"context"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
	"triune.dev/shared/storage/render"
)

// CacheConfig says what is stored in a cache.
type CacheConfig struct {
	// Codec decodes what is stored. Required.
	Codec runtime.Codec
	// Transformer decrypts it. By default nothing is encrypted.
	Transformer value.Transformer
	// Attributes may be nil, then labels and fields are unknown to the cache.
	Attributes storage.AttrFunc
	// Selectable says where in the stored bytes the fields are that Attributes gives.
	// By default objects are decoded for them, unless Attributes is what
	// [storage.DefaultNamespaceScopedAttr] or [storage.DefaultClusterScopedAttr] is.
	Selectable render.Selectable
	// NewFunc makes the empty object of a Store with such Attributes.
	NewFunc func() runtime.Object
}

// CacheOptions are the options of a cache that Stores with this codec and
// transformer can share.
func CacheOptions(c CacheConfig) (bytecache.Options, error) {
	var o bytecache.Options
	transformer := c.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	o.SlowDecrypt = c.Transformer != nil
	o.Decrypt = func(ctx context.Context, key string, stored []byte) ([]byte, bool, error) {
		return transformer.TransformFromStorage(ctx, stored, value.DefaultContext(key))
	}
	if c.Attributes == nil {
		return o, nil
	}
	plainFields, err := c.plainFields()
	if err != nil {
		return o, err
	}
	decoded := func(e *bytecache.Entry) (map[string]string, fields.Set, error) {
		obj, _, err := c.Codec.Decode(e.Data(), nil, nil)
		if err != nil {
			return nil, nil, err
		}
		return c.Attributes(obj)
	}
	var plainLabels render.Labels
	o.Label, o.LabelFilter = plainLabels.ValueOfEntry, plainLabels.Filter
	o.Labels = func(e *bytecache.Entry) (bytecache.Attributes, error) {
		if labels, ok := plainLabels.OfEntry(e); ok {
			return labels, nil
		}
		labels, _, err := decoded(e)
		return labels, err
	}
	o.Fields = func(e *bytecache.Entry) (bytecache.Attributes, error) {
		if plainFields != nil {
			if selectable, ok := plainFields.OfEntry(e); ok {
				return selectable, nil
			}
		}
		_, selectable, err := decoded(e)
		return bytecache.Attributes(selectable), err
	}
	if plainFields != nil {
		o.Field = plainFields.ValueOfEntry
	}
	return o, nil
}

// plainFields returns what reads the selectable fields from the stored bytes, nil if
// only decoded objects have them.
func (c *CacheConfig) plainFields() (*render.Fields, error) {
	if c.Selectable.Kind != "" {
		return render.NewFields(c.Selectable)
	}
	namespaced := same(c.Attributes, storage.DefaultNamespaceScopedAttr)
	if !namespaced && !same(c.Attributes, storage.DefaultClusterScopedAttr) || c.NewFunc == nil {
		return nil, nil
	}
	apiVersion, kind, ok := render.StoredAs(c.Codec, c.NewFunc())
	if !ok {
		return nil, nil
	}
	return render.NewFields(render.Selectable{APIVersion: apiVersion, Kind: kind, Namespaced: namespaced})
}

// same tells whether f is a function that has a name, and so no state.
func same(f, named storage.AttrFunc) bool {
	return reflect.ValueOf(f).Pointer() == reflect.ValueOf(named).Pointer()
}

// Cache is what the store's reads are answered from, nil if that is etcd.
func (s *Store) Cache() *bytecache.Cache { return s.cache }

// Prober asks etcd how new a read of the cache has to be; nil without a cache.
func (s *Store) Prober() *readindex.Prober { return s.prober }

// Codec decodes what the cache holds, and encodes it again.
func (s *Store) Codec() runtime.Codec { return s.codec }

// Uncached tells whether the answers are to be those of a resource that
// kube-apiserver has no watch cache for.
func (s *Store) Uncached() bool { return s.uncached }

// cachedItem is what the cache has under a key.
type cachedItem struct {
	entry *bytecache.Entry // nil if there is no such object
	// revision at which that is true.
	revision int64
	// known is false where etcd has to be asked.
	known bool
}

// cachedGet answers a read of one key, with the freshness that o asks for.
func (s *Store) cachedGet(ctx context.Context, etcdKey string, o kv.ReadOptions) (cachedItem, error) {
	if s.cache == nil || o.Revision != 0 || !strings.HasPrefix(etcdKey, s.cache.Prefix()) {
		return cachedItem{}, nil
	}
	entry, revision, err := s.cache.Get(ctx, etcdKey)
	if err != nil {
		return cachedItem{}, err
	}
	if entry != nil && entry.Err != nil {
		s.cache.RetryDecrypt(ctx, entry)
		return cachedItem{}, nil // etcd's bytes, and the error they give now
	}
	if o.Serializable {
		return cachedItem{entry: entry, revision: revision, known: true}, nil
	}
	now, err := s.prober.Confirm(ctx, etcdKey)
	if err != nil {
		return cachedItem{}, err
	}
	if now.Revision < revision {
		return cachedItem{}, nil // etcd was replaced by an older one
	}
	have := int64(0)
	if entry != nil {
		have = entry.Revision
	}
	// The cache may also be ahead of the answer.
	known := have == now.ModRevision || have > now.Revision
	return cachedItem{entry: entry, revision: max(now.Revision, have), known: known}, nil
}

// cachedPage answers a read of a page of a collection. The bytes of its objects are
// those of l.entries, decrypted: some may be compressed, and need not be restored all
// at once. known is false where etcd has to be asked.
func (l *lister) cachedPage(ctx context.Context, from string, o kv.ReadOptions) (page kv.Page, known bool, err error) {
	s := l.store
	if s.cache == nil || !strings.HasPrefix(l.prefix, s.cache.Prefix()) {
		return kv.Page{}, false, nil
	}
	snapshot, err := s.snapshot(ctx, o)
	if err != nil || snapshot == nil {
		return kv.Page{}, false, err
	}
	from = max(from, l.prefix)
	limit := int(l.plan.limit)
	if limit == 0 && l.prefix == s.cache.Prefix() {
		page.KVs = make([]*kv.KeyValue, 0, snapshot.Len())
	}
	page.Revision = snapshot.Revision
	var entries []*bytecache.Entry
	var broken *bytecache.Entry
	snapshot.Ascend(from, func(e *bytecache.Entry) bool {
		if !strings.HasPrefix(e.Key, l.prefix) {
			return false
		}
		page.Count++
		if limit > 0 && len(page.KVs) == limit {
			return true // the rest is only counted
		}
		if e.Err != nil {
			broken = e
			return false
		}
		page.KVs = append(page.KVs, &kv.KeyValue{Key: []byte(e.Key), ModRevision: e.Revision})
		entries = append(entries, e)
		return true
	})
	if broken != nil {
		s.cache.RetryDecrypt(ctx, broken)
		return kv.Page{}, false, nil // etcd's bytes, and the error they give now
	}
	if page.More() {
		s.cache.Pin(snapshot)
	}
	l.entries = entries
	return page, true, nil
}

// snapshot returns the state to read from, nil if only etcd has it.
func (s *Store) snapshot(ctx context.Context, o kv.ReadOptions) (*bytecache.Snapshot, error) {
	if o.Revision != 0 {
		snapshot, _ := s.cache.SnapshotAt(o.Revision)
		return snapshot, nil
	}
	if !o.Serializable {
		before := s.cache.Revision()
		revision, err := s.currentRevision(ctx)
		if err != nil {
			return nil, err
		}
		if revision < before {
			return nil, nil // etcd was replaced by an older one
		}
		if !MayWaitForCache(ctx) && s.cache.Revision() < revision {
			return nil, nil
		}
		// A cache that is far behind is no reason to wait: etcd has the answer.
		waiting, cancel := context.WithTimeout(ctx, s.freshTimeout)
		err = s.cache.Await(waiting, revision)
		cancel()
		if err != nil {
			return nil, ctx.Err()
		}
	}
	return s.cache.Snapshot(ctx)
}

// cachedState is the state to begin an update or a deletion with, nil if the cache
// has none. It is not confirmed.
func (r *stateReader) cachedState() *state {
	s := r.store
	if s.cache == nil || r.unread {
		return nil
	}
	entry, _ := s.cache.Peek(r.key)
	if entry == nil || entry.Err != nil {
		return nil
	}
	st := &state{obj: r.empty(), revision: entry.Revision, data: entry.Data(), stale: entry.Stale}
	if _, err := s.decode(r.key, st.data, entry.Revision, st.obj); err != nil {
		return nil // etcd's bytes, and the error they give
	}
	return st
}
