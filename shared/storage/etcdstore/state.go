package etcdstore

import (
	"bytes"
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// state is the stored state that an update or a deletion assumes.
type state struct {
	// obj is nil if the object is deleted without being decoded.
	obj      runtime.Object
	revision int64 // 0 if the object does not exist
	// data is the decrypted encoding.
	data []byte
	// stale means that the stored bytes differ from what would be written for the same
	// object.
	stale bool
	// confirmed means that etcd returned the state during this operation. Otherwise it
	// comes from the cache or a suggestion and may be out of date: it may start a
	// transaction, which checks the revision, but not be the reason of a refusal.
	confirmed bool
}

func (st *state) meta() storage.ResponseMeta {
	return storage.ResponseMeta{ResourceVersion: uint64(st.revision)}
}

// unchanged reports whether writing data would change nothing.
func (st *state) unchanged(data []byte) bool {
	return !st.stale && bytes.Equal(data, st.data)
}

// stateReader reads the state of a key for an operation on it.
type stateReader struct {
	store *Store
	key   string // in etcd
	// like has the type of the object, that of the caller's output argument.
	like reflect.Value
	// absentOK makes the state of a missing object empty instead of an error.
	absentOK bool
	// unread means that the object is not decoded, so that a corrupt one can be deleted.
	unread bool
}

func (s *Store) stateReader(etcdKey string, out runtime.Object) (*stateReader, error) {
	like, err := conversion.EnforcePtr(out)
	if err != nil {
		return nil, fmt.Errorf("output object: %w", err)
	}
	return &stateReader{store: s, key: etcdKey, like: like}, nil
}

// begin returns the first state to try: the newer one of those in the cache and in the
// suggestion, or that in etcd if there is neither.
func (r *stateReader) begin(ctx context.Context, suggestion runtime.Object) (*state, error) {
	cached := r.cachedState()
	switch {
	case suggestion == nil && cached == nil:
		return r.read(ctx)
	case suggestion == nil:
		return cached, nil
	}
	suggested, err := r.fromSuggestion(suggestion)
	if err == nil && cached != nil && cached.revision >= suggested.revision {
		return cached, nil
	}
	return suggested, err
}

// read reads the state from etcd.
func (r *stateReader) read(ctx context.Context) (*state, error) {
	item, err := r.store.get(ctx, r.key, kv.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return r.from(ctx, item.KV)
}

// from returns the state of a result of etcd, which is nil if the key does not exist.
func (r *stateReader) from(ctx context.Context, item *kv.KeyValue) (*state, error) {
	st := &state{confirmed: true}
	if item == nil {
		if !r.absentOK {
			return nil, storage.NewKeyNotFoundError(r.key, 0)
		}
		st.obj = r.empty()
		return st, runtime.SetZeroValue(st.obj)
	}
	st.revision = item.ModRevision
	if r.unread {
		st.stale = true
		return st, nil
	}
	var err error
	if st.data, st.stale, err = r.store.decrypt(ctx, r.key, item.Value); err != nil {
		return nil, storage.NewInternalError(err)
	}
	st.obj = r.empty()
	if _, err := r.store.decode(r.key, st.data, st.revision, st.obj); err != nil {
		return nil, err
	}
	return st, nil
}

func (r *stateReader) empty() runtime.Object {
	if u, ok := r.like.Addr().Interface().(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(r.like.Type()).Interface().(runtime.Object)
}

// fromSuggestion encodes the suggested object. Whether the stored bytes are stale is
// unknown.
func (r *stateReader) fromSuggestion(obj runtime.Object) (*state, error) {
	s := r.store
	version, err := s.versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, fmt.Errorf("resource version of the suggested object: %w", err)
	}
	st := &state{obj: obj, revision: int64(version)}
	if st.data, err = s.encode(obj); err != nil {
		return nil, err
	}
	// encode has cleared the version of the caller's object.
	if err := s.versioner.UpdateObject(obj, version); err != nil {
		klog.ErrorS(err, "a suggested object takes no resource version", "group", s.resource.Group, "resource", s.resource.Resource)
	}
	return st, nil
}
