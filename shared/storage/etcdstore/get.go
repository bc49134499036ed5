package etcdstore

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"triune.dev/shared/storage/kv"
)

// Get implements storage.Interface. Without a resource version the answer is
// linearizable; with one it is not older, and with "0" it may be as old as the
// etcd member that answers.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	etcdKey, err := s.keys.etcdKey(key, false)
	if err != nil {
		return err
	}
	want, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		if s.uncached {
			return invalidResourceVersion(err)
		}
		return err
	}
	// Any member may answer that is recent enough.
	anyMember := opts.ResourceVersion != ""
	if done, err := s.getCached(ctx, etcdKey, int64(want), opts, out); done {
		return err
	}
	item, err := s.get(ctx, etcdKey, kv.ReadOptions{Serializable: anyMember})
	if err == nil && anyMember && int64(want) > item.Revision {
		item, err = s.get(ctx, etcdKey, kv.ReadOptions{})
	}
	if err != nil {
		return err
	}
	if int64(want) > item.Revision {
		if s.uncached {
			return tooLarge(int64(want), item.Revision)
		}
		if err := s.awaitRevision(ctx, int64(want)); err != nil {
			return err
		}
		if item, err = s.get(ctx, etcdKey, kv.ReadOptions{}); err != nil {
			return err
		}
	}
	if item.KV == nil {
		return notFound(etcdKey, opts, out)
	}
	data, _, err := s.decrypt(ctx, etcdKey, item.KV.Value)
	if err != nil {
		return s.corruptError(key, storage.NewInternalError(err))
	}
	return s.corruptError(key, s.decodeOut(etcdKey, data, item.KV.ModRevision, out))
}

// getCached is Get out of the cache. done is false where etcd has to be asked.
func (s *Store) getCached(ctx context.Context, etcdKey string, want int64, opts storage.GetOptions, out runtime.Object) (done bool, err error) {
	item, err := s.cachedGet(ctx, etcdKey, kv.ReadOptions{Serializable: opts.ResourceVersion != ""})
	if err != nil {
		return true, err
	}
	if !item.known || item.revision < want {
		return false, nil
	}
	if item.entry == nil {
		return true, notFound(etcdKey, opts, out)
	}
	return true, s.decodeOut(etcdKey, item.entry.Data(), item.entry.Revision, out)
}

func notFound(etcdKey string, opts storage.GetOptions, out runtime.Object) error {
	if opts.IgnoreNotFound {
		return runtime.SetZeroValue(out)
	}
	return storage.NewKeyNotFoundError(etcdKey, 0)
}

func (s *Store) get(ctx context.Context, etcdKey string, o kv.ReadOptions) (kv.Item, error) {
	start := time.Now()
	item, err := s.reader.Get(ctx, etcdKey, o)
	metrics.RecordEtcdRequest("get", s.resource, err, start)
	return item, err
}
