package etcdstore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/kv"
)

// GuaranteedUpdate implements storage.Interface. It starts with the state of the cache or the
// suggestion, writes only over the revision of that state, and retries until that succeeds.
// It returns a refusal (of a precondition or of tryUpdate) or a no-op only after a read from
// etcd has confirmed the state.
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, suggestion runtime.Object) error {
	etcdKey, err := s.keys.etcdKey(key, false)
	if err != nil {
		return err
	}
	ctx, end := s.traceWrite(ctx, "GuaranteedUpdate etcd3", key, out)
	defer end()
	states, err := s.stateReader(etcdKey, out)
	if err != nil {
		return err
	}
	states.absentOK = ignoreNotFound
	current, err := states.begin(ctx, suggestion)
	if err != nil {
		return err
	}
	for {
		data, ttl, refusal := s.propose(etcdKey, current, preconditions, tryUpdate)
		if refusal != nil {
			current, err = states.confirm(ctx, current, refusal)
			if err != nil {
				return err
			}
			continue
		}
		if current.unchanged(data) {
			if !current.confirmed {
				if current, err = states.read(ctx); err != nil {
					return err
				}
				if string(data) != string(current.data) {
					continue // it was out of date: propose again
				}
			}
			// Confirmed equal, the write is still needed if the stored form
			// turned out to be stale.
			if !current.stale {
				return s.decodeOut(etcdKey, current.data, current.revision, out)
			}
		}
		written, err := s.put(ctx, "update", kv.Put{Key: etcdKey, Expected: current.revision, Reread: true}, data, ttl)
		if err != nil {
			return err
		}
		if written.Done {
			return s.decodeOut(etcdKey, data, written.Revision, out)
		}
		klog.V(4).InfoS("update met a newer revision", "group", s.resource.Group, "resource", s.resource.Resource, "key", etcdKey)
		if current, err = states.from(ctx, written.Current); err != nil {
			return err
		}
	}
}

// propose returns the encoding of the updated object and its time to live. The
// error is a refusal of the update, not a failure of storage, except where the
// updated object cannot be encoded, which no newer state would change either.
func (s *Store) propose(key string, current *state, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc) ([]byte, uint64, error) {
	if err := preconditions.Check(key, current.obj); err != nil {
		return nil, 0, err
	}
	updated, ttl, err := tryUpdate(current.obj, current.meta())
	if err != nil {
		return nil, 0, err
	}
	data, err := s.encode(updated)
	if err != nil {
		return nil, 0, err
	}
	if ttl == nil {
		return data, 0, nil
	}
	return data, *ttl, nil
}

// confirm returns the refusal if its state is that in etcd, and otherwise the state to try
// again with.
func (r *stateReader) confirm(ctx context.Context, current *state, refusal error) (*state, error) {
	if current.confirmed {
		return nil, refusal
	}
	fresh, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	if fresh.revision == current.revision {
		return nil, refusal
	}
	return fresh, nil
}
