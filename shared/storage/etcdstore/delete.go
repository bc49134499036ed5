package etcdstore

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/klog/v2"
)

// Delete implements storage.Interface. out becomes the object as it was, with
// the revision of its deletion. As with an update, a refusal is answered only
// for a state that etcd has confirmed.
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions) error {
	etcdKey, err := s.keys.etcdKey(key, false)
	if err != nil {
		return err
	}
	ctx, end := s.traceWrite(ctx, "Delete etcd3", key, out)
	defer end()
	states, err := s.stateReader(etcdKey, out)
	if err != nil {
		return err
	}
	states.unread = s.reportCorrupt && opts.IgnoreStoreReadError
	current, err := states.begin(ctx, suggestion)
	if err != nil {
		return err
	}
	for {
		if refusal := refuses(ctx, etcdKey, current.obj, preconditions, validate); refusal != nil {
			if current, err = states.confirm(ctx, current, refusal); err != nil {
				return err
			}
			continue
		}
		start := time.Now()
		deleted, err := s.writer.Delete(ctx, etcdKey, current.revision)
		metrics.RecordEtcdRequest("delete", s.resource, err, start)
		if err != nil {
			return err
		}
		if deleted.Done {
			if states.unread {
				return nil
			}
			return s.decodeOut(etcdKey, current.data, deleted.Revision, out)
		}
		klog.V(4).InfoS("deletion met a newer revision", "group", s.resource.Group, "resource", s.resource.Resource, "key", etcdKey)
		if current, err = states.from(ctx, deleted.Current); err != nil {
			return err
		}
	}
}

func refuses(ctx context.Context, key string, obj runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc) error {
	if err := preconditions.Check(key, obj); err != nil {
		return err
	}
	return validate(ctx, obj)
}
