package etcdstore

import (
	"context"
	"reflect"
	"strings"
	"time"

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

// CacheConfig describes the objects in a cache.
type CacheConfig struct {
	// Codec decodes the stored objects. Required.
	Codec runtime.Codec
	// Transformer decrypts them; nil means that they are not encrypted.
	Transformer value.Transformer
	// Attributes returns labels and fields; nil means that the cache has neither.
	Attributes storage.AttrFunc
	// Selectable lists where the fields of Attributes are in the stored bytes. Without it
	// objects are decoded, unless Attributes is [storage.DefaultNamespaceScopedAttr] or
	// [storage.DefaultClusterScopedAttr].
	Selectable render.Selectable
	// NewFunc makes an empty object, for those two.
	NewFunc func() runtime.Object
}

// CacheOptions returns the options of a cache that Stores with the same codec and
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
	namespaced := sameFunc(c.Attributes, storage.DefaultNamespaceScopedAttr)
	if !namespaced && !sameFunc(c.Attributes, storage.DefaultClusterScopedAttr) || c.NewFunc == nil {
		return nil, nil
	}
	apiVersion, kind, ok := render.StoredAs(c.Codec, c.NewFunc())
	if !ok {
		return nil, nil
	}
	return render.NewFields(render.Selectable{APIVersion: apiVersion, Kind: kind, Namespaced: namespaced})
}

// sameFunc reports whether f is the function named. Closures are never the same.
func sameFunc(f, named storage.AttrFunc) bool {
	return reflect.ValueOf(f).Pointer() == reflect.ValueOf(named).Pointer()
}

// Cache returns the cache that the store reads from, nil if it reads from etcd.
func (s *Store) Cache() *bytecache.Cache { return s.cache }

// Prober returns the prober that confirms reads of the cache; nil without a cache.
func (s *Store) Prober() *readindex.Prober { return s.prober }

// Codec returns the codec of the stored objects.
func (s *Store) Codec() runtime.Codec { return s.codec }

// Uncached reports whether Config.Uncached is set.
func (s *Store) Uncached() bool { return s.uncached }

// cachedItem is the result of a read of one key from the cache.
type cachedItem struct {
	entry *bytecache.Entry // nil if there is no such object
	// revision is the revision of the result.
	revision int64
	// known is false if only etcd has the result.
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

// cachedPage reads a page of a collection from the cache. It sets l.entries to its objects
// instead of returning their bytes, which need not be decompressed all at once. known is
// false if only etcd has the result.
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
			return true // only count the rest
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
	s.cache.Reads().CountList("", len(entries), len(entries))
	return page, true, nil
}

// snapshot returns the snapshot to read from, nil if only etcd has the result.
func (s *Store) snapshot(ctx context.Context, o kv.ReadOptions) (*bytecache.Snapshot, error) {
	if o.Revision != 0 {
		if o.Revision <= s.CompactRevision() {
			return nil, nil // a replica that has not pinned it would answer 410
		}
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
		// Do not wait long for a cache that lags: etcd has the result.
		began := time.Now()
		waiting, cancel := context.WithTimeout(ctx, s.freshTimeout)
		err = s.cache.Await(waiting, revision)
		cancel()
		s.cache.Reads().CountWait(time.Since(began))
		s.cache.Reads().CountConsistent(err == nil)
		if err != nil {
			return nil, ctx.Err()
		}
	}
	return s.cache.Snapshot(ctx)
}

// cachedState returns the unconfirmed state of the key in the cache, nil if there is none.
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
