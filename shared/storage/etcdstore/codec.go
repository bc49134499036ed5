package etcdstore

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
)

// encode returns the object in its storage version, not yet encrypted. It
// clears the fields that are never stored: resourceVersion and selfLink.
func (s *Store) encode(obj runtime.Object) ([]byte, error) {
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("prepare for storage: %w", err)
	}
	return runtime.Encode(s.codec, obj)
}

// encrypt encrypts what encode returned. The key is authenticated with it, so that
// a stored value cannot be moved to another key.
func (s *Store) encrypt(ctx context.Context, key string, data []byte) ([]byte, error) {
	encrypted, err := s.transformer.TransformToStorage(ctx, data, value.DefaultContext(key))
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	return encrypted, nil
}

// decrypt decrypts a stored value. stale means that the object should be written
// again even if nothing else changes, because the key it is encrypted with is no
// longer the one to use.
func (s *Store) decrypt(ctx context.Context, key string, stored []byte) (data []byte, stale bool, err error) {
	data, stale, err = s.transformer.TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil && s.reportCorrupt {
		err = &unreadableError{reason: untransformable, err: err}
	}
	return data, stale, err
}

// decode fills into with the object that data encodes and the revision it has.
// The result is into, unless the codec insists on another object.
func (s *Store) decode(key string, data []byte, revision int64, into runtime.Object) (runtime.Object, error) {
	obj, _, err := s.codec.Decode(data, nil, into)
	if err != nil {
		metrics.RecordDecodeError(s.resource)
		klog.V(4).InfoS("decode of a stored object failed", "group", s.resource.Group, "resource", s.resource.Resource, "key", key, "revision", revision)
		if s.reportCorrupt {
			err = &unreadableError{reason: undecodable, revision: revision, err: err}
		}
		return nil, err
	}
	// An object without metadata has no place for a version, and is still read.
	if err := s.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		klog.ErrorS(err, "a stored object takes no resource version", "group", s.resource.Group, "resource", s.resource.Resource)
	}
	return obj, nil
}

// decodeOut decodes into the object that a caller of storage.Interface gave.
func (s *Store) decodeOut(key string, data []byte, revision int64, out runtime.Object) error {
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("output object: %w", err)
	}
	_, err := s.decode(key, data, revision, out)
	return err
}
