package kv

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KeyValue is one key as etcd stores it, with its create and mod revisions.
type KeyValue = mvccpb.KeyValue

// Client reads, writes and watches one etcd cluster.
type Client struct {
	etcd     *clientv3.Client
	watcher  clientv3.Watcher
	observe  func(context.Context, time.Duration)
	progress progressLimiter
	// seen is the highest revision that any answer has carried, so that only a
	// revision beyond it has to be compared with etcd's.
	seen atomic.Int64
	own  ownStream
}

// New wraps an etcd client, which may be a dialed one or that of an etcdembed.Member
// in the same process. The caller keeps it and closes it.
func New(etcd *clientv3.Client) *Client { return NewObserved(etcd, nil) }

// NewObserved is New with a function that is called with the duration of each read and
// write, and with the context of its request. It is called on the goroutine of the request
// and must not block.
func NewObserved(etcd *clientv3.Client, observe func(context.Context, time.Duration)) *Client {
	return &Client{etcd: etcd, watcher: newWatcher(etcd), observe: observe}
}

// Etcd returns the wrapped client.
func (c *Client) Etcd() *clientv3.Client { return c.etcd }

// timed reports the duration of a call to the observer, if there is one.
func (c *Client) timed(ctx context.Context, start time.Time) {
	if c.observe != nil {
		c.observe(ctx, time.Since(start))
	}
}

// saw records a revision that exists, and returns it.
func (c *Client) saw(revision int64) int64 {
	for {
		seen := c.seen.Load()
		if revision <= seen || c.seen.CompareAndSwap(seen, revision) {
			return revision
		}
	}
}
