package kv

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// MaxConfirmed bounds the keys of a call to ModRevisions: etcd takes as many operations in
// one transaction (--max-txn-ops).
const MaxConfirmed = 128

// ModRevisions returns the mod revision of each key, 0 where there is none, and
// the revision of the store at which all of that is true, linearizably, in one
// transaction. Without keys it only finds out the revision; anchor is then the key
// that is read.
func (c *Client) ModRevisions(ctx context.Context, anchor string, keys []string) ([]int64, int64, error) {
	if len(keys) == 0 {
		revision, err := c.Revision(ctx, anchor)
		return nil, revision, err
	}
	defer c.timed(ctx, time.Now())
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key, clientv3.WithKeysOnly())
	}
	resp, err := c.etcd.KV.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, 0, err
	}
	revisions := make([]int64, len(keys))
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
			revisions[i] = kvs[0].ModRevision
		}
	}
	return revisions, c.saw(resp.Header.GetRevision()), nil
}
