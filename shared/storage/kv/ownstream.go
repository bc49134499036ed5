package kv

import (
	"context"
	"strconv"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// streamNames numbers the gRPC streams of all clients: two clients of an etcd in the same
// process share its watcher.
var streamNames atomic.Uint64

// ownStream is the gRPC stream of a client's watch. It is shared with no other, so that
// no other watch delays its progress. Because progress on that stream is requested only by
// the client, and not before etcd has acknowledged the watch, it is valid even if it does not
// go beyond the acknowledgement: an idle etcd answers, too.
type ownStream struct {
	name         atomic.Uint64
	acknowledged atomic.Bool
}

// renew takes another gRPC stream for the next watch. On the old one an answer
// to an earlier question may still be on its way.
func (o *ownStream) renew() {
	o.acknowledged.Store(false)
	o.name.Store(streamNames.Add(1))
}

// watchContext gives watches and progress requests their gRPC metadata, by
// which etcd's client decides whether they share a stream. A watch that requires a
// leader is ended by etcd when there is none, instead of staying silent.
func (c *Client) watchContext(ctx context.Context) context.Context {
	md := metadata.MD{}
	md.Set("triune-watch", strconv.FormatUint(c.own.name.Load(), 10))
	return clientv3.WithRequireLeader(metadata.NewOutgoingContext(ctx, md))
}
