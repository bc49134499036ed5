package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"triune.dev/shared/storage/kv"
)

// Create implements storage.Interface. ttl is in seconds, 0 means forever; an
// object may live a little longer than asked for, because leases are shared.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	etcdKey, err := s.keys.etcdKey(key, false)
	if err != nil {
		return err
	}
	ctx, end := s.traceWrite(ctx, "Create etcd3", key, obj)
	defer end()
	if version, err := s.versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	data, err := s.encode(obj)
	if err != nil {
		return err
	}
	written, err := s.put(ctx, "create", kv.Put{Key: etcdKey}, data, ttl)
	if err != nil {
		return err
	}
	if !written.Done {
		return storage.NewKeyExistsError(etcdKey, 0)
	}
	if out == nil {
		return nil
	}
	return s.decodeOut(etcdKey, data, written.Revision, out)
}

// put encrypts data and writes it where p says, under a lease if ttl is not 0.
func (s *Store) put(ctx context.Context, verb string, p kv.Put, data []byte, ttl uint64) (kv.Written, error) {
	encrypted, err := s.encrypt(ctx, p.Key, data)
	if err != nil {
		return kv.Written{}, err
	}
	p.Value = encrypted
	if p.Lease, err = s.lease(ctx, ttl); err != nil {
		return kv.Written{}, err
	}
	start := time.Now()
	written, err := s.writer.Put(ctx, p)
	metrics.RecordEtcdRequest(verb, s.resource, err, start)
	return written, err
}

func (s *Store) lease(ctx context.Context, ttl uint64) (clientv3.LeaseID, error) {
	if ttl == 0 {
		return clientv3.NoLease, nil
	}
	return s.leases.lease(ctx, time.Duration(ttl)*time.Second)
}
