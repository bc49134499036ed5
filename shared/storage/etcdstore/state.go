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

// state is what an update or a deletion believes is stored.
type state struct {
	// obj is nil where it is to be deleted unread.
	obj      runtime.Object
	revision int64 // 0 if the object does not exist
	// data is the decrypted encoding.
	data []byte
	// stale: what is stored is not what would be written for the same object.
	stale bool
	// confirmed: etcd itself said so during this operation. What is not
	// confirmed comes from a suggestion and may be out of date; it may begin a
	// transaction, which checks the revision, but never justify an answer.
	confirmed bool
}

func (st *state) meta() storage.ResponseMeta {
	return storage.ResponseMeta{ResourceVersion: uint64(st.revision)}
}

// unchanged tells whether writing data would store what is stored already.
func (st *state) unchanged(data []byte) bool {
	return !st.stale && bytes.Equal(data, st.data)
}

// stateReader finds out the state of one key for an operation on it.
type stateReader struct {
	store *Store
	key   string // in etcd
	// like is the type of the object, as the caller's output argument has it.
	like reflect.Value
	// absentOK gives a missing object an empty state instead of an error.
	absentOK bool
	// unread leaves the object undecoded, to delete what cannot be read.
	unread bool
}

func (s *Store) stateReader(etcdKey string, out runtime.Object) (*stateReader, error) {
	like, err := conversion.EnforcePtr(out)
	if err != nil {
		return nil, fmt.Errorf("output object: %w", err)
	}
	return &stateReader{store: s, key: etcdKey, like: like}, nil
}

// begin returns the state to start with: the newer one of what the cache has and
// the suggestion, if there is either.
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

// read asks etcd.
func (r *stateReader) read(ctx context.Context) (*state, error) {
	item, err := r.store.get(ctx, r.key, kv.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return r.from(ctx, item.KV)
}

// from makes the state of what etcd returned, nil meaning that there is nothing.
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
	if st.data, st.stale, err = r.store.open(ctx, r.key, item.Value); err != nil {
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

// fromSuggestion encodes the suggested object to see what would be stored for
// it. Whether the stored form is stale is then not known.
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
