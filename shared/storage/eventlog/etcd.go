package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/kv"
)

// position is a revision of one etcd cluster.
type position struct {
	cluster  uint64
	revision int64
}

// currentPosition reads the current revision linearizably.
func currentPosition(ctx context.Context, etcd *clientv3.Client, key string) (position, error) {
	resp, err := etcd.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return position{}, fmt.Errorf("read revision: %w", err)
	}
	return position{cluster: resp.Header.GetClusterId(), revision: resp.Header.GetRevision()}, nil
}

// contradicts reports whether etcd's history lacks an event of a stream. After a
// restore from a backup, the same revisions hold other changes. A compacted revision
// contradicts nothing.
func contradicts(ctx context.Context, etcd *clientv3.Client, e *kv.Event) (bool, error) {
	at := func(revision int64) (*kv.KeyValue, error) {
		resp, err := etcd.Get(ctx, e.Key, clientv3.WithRev(revision))
		if err != nil || len(resp.Kvs) == 0 {
			return nil, err
		}
		return resp.Kvs[0], nil
	}
	after, err := at(e.Revision)
	if err == nil && e.Kind == kv.Deleted {
		var before *kv.KeyValue
		if after != nil {
			return true, nil
		}
		if before, err = at(e.Revision - 1); err == nil {
			return before == nil || !bytes.Equal(before.Value, e.Previous), nil
		}
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return false, nil
	case errors.Is(err, rpctypes.ErrFutureRev):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read %s at revision %d: %w", e.Key, e.Revision, err)
	}
	return after == nil || after.ModRevision != e.Revision || !bytes.Equal(after.Value, e.Value), nil
}
