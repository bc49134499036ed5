package kv

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ReadOptions determine how fresh a read must be.
type ReadOptions struct {
	// Revision reads the store as it was then; 0 means now. A compacted
	// revision gives rpctypes.ErrCompacted, one that does not exist yet
	// rpctypes.ErrFutureRev.
	Revision int64
	// Serializable lets any member answer from its own state, without asking the
	// quorum: cheaper, available while there is no leader, and possibly stale.
	Serializable bool
}

// Item is the answer to Get.
type Item struct {
	// KV is nil when the key does not exist.
	KV *KeyValue
	// Revision is the store's revision at which the answer is true, also when
	// an older one was asked for.
	Revision int64
}

// Get reads one key.
func (c *Client) Get(ctx context.Context, key string, o ReadOptions) (Item, error) {
	defer c.timed(ctx, time.Now())
	opts := make([]clientv3.OpOption, 0, 2)
	if o.Revision != 0 {
		opts = append(opts, clientv3.WithRev(o.Revision))
	}
	if o.Serializable {
		opts = append(opts, clientv3.WithSerializable())
	}
	resp, err := c.etcd.KV.Get(ctx, key, opts...)
	if err != nil {
		return Item{}, err
	}
	item := Item{Revision: c.saw(resp.Header.GetRevision())}
	if len(resp.Kvs) > 0 {
		item.KV = resp.Kvs[0]
	}
	return item, nil
}

// Range names the keys from Start (inclusive) to End (exclusive).
type Range struct {
	Start, End string
	// Limit bounds the number of keys in the answer; 0 means all.
	Limit int64
	// KeysOnly leaves the values out.
	KeysOnly bool
	ReadOptions
}

// PrefixRange is the range of all keys that begin with prefix, from the key
// start on; an empty start means from the beginning.
func PrefixRange(prefix, start string) Range {
	if start == "" {
		start = prefix
	}
	return Range{Start: start, End: clientv3.GetPrefixRangeEnd(prefix)}
}

// Page is the answer to List, in key order.
type Page struct {
	KVs []*KeyValue
	// Count is the number of keys in the whole range, ignoring Limit.
	Count int64
	// Revision is as in Item.
	Revision int64
}

// More reports whether the range has keys after the page's last one.
func (p Page) More() bool { return int64(len(p.KVs)) < p.Count }

// List reads a range of keys in ascending order.
func (c *Client) List(ctx context.Context, r Range) (Page, error) {
	defer c.timed(ctx, time.Now())
	opts := make([]clientv3.OpOption, 0, 5)
	opts = append(opts, clientv3.WithRange(r.End))
	if r.Limit > 0 {
		opts = append(opts, clientv3.WithLimit(r.Limit))
	}
	if r.Revision != 0 {
		opts = append(opts, clientv3.WithRev(r.Revision))
	}
	if r.Serializable {
		opts = append(opts, clientv3.WithSerializable())
	}
	if r.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	resp, err := c.etcd.KV.Get(ctx, r.Start, opts...)
	if err != nil {
		return Page{}, err
	}
	return Page{KVs: resp.Kvs, Count: resp.Count, Revision: c.saw(resp.Header.GetRevision())}, nil
}

// Count returns how many keys begin with prefix.
func (c *Client) Count(ctx context.Context, prefix string) (int64, error) {
	defer c.timed(ctx, time.Now())
	resp, err := c.etcd.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Count, nil
}

// Revision returns the store's current revision, linearizably. The key is only
// a place that this client is allowed to read; it need not exist.
func (c *Client) Revision(ctx context.Context, key string) (int64, error) {
	defer c.timed(ctx, time.Now())
	resp, err := c.etcd.KV.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return c.saw(resp.Header.GetRevision()), nil
}
