package kv

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Written is the outcome of a conditional write.
type Written struct {
	// Done is false when the key was not at the expected revision, and nothing
	// has been written.
	Done bool
	// Revision is that of the write, or of the refusal.
	Revision int64
	// Current is the key as it is now, where the write was refused and it was
	// asked for; nil when the key does not exist.
	Current *KeyValue
}

// Put describes a conditional write of one key.
type Put struct {
	Key   string
	Value []byte
	// Expected is the mod revision the key must have; 0 means that it must not
	// exist.
	Expected int64
	// Lease removes the key when it ends; 0 means never.
	Lease clientv3.LeaseID
	// Reread asks for the current key when the write is refused.
	Reread bool
}

// Put writes a key if it is at the expected revision, in one transaction.
func (c *Client) Put(ctx context.Context, p Put) (Written, error) {
	return c.guarded(ctx, p.Key, p.Expected, clientv3.OpPut(p.Key, string(p.Value), clientv3.WithLease(p.Lease)), p.Reread)
}

// Delete removes a key if it is at the expected revision, in one transaction,
// and otherwise returns the current key.
func (c *Client) Delete(ctx context.Context, key string, expected int64) (Written, error) {
	return c.guarded(ctx, key, expected, clientv3.OpDelete(key), true)
}

func (c *Client) guarded(ctx context.Context, key string, expected int64, op clientv3.Op, reread bool) (Written, error) {
	defer c.timed(ctx, time.Now())
	txn := c.etcd.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", expected)).Then(op)
	if reread {
		txn = txn.Else(clientv3.OpGet(key))
	}
	resp, err := txn.Commit()
	if err != nil {
		return Written{}, err
	}
	w := Written{Done: resp.Succeeded, Revision: c.saw(resp.Header.GetRevision())}
	if !w.Done && reread && len(resp.Responses) > 0 {
		if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			w.Current = kvs[0]
		}
	}
	return w, nil
}

// Grant makes a lease that ends after ttl, which is rounded up to seconds.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	resp, err := c.etcd.Lease.Grant(ctx, seconds)
	if err != nil {
		return 0, err
	}
	return resp.ID, nil
}
