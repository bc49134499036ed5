package kv

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// ownProgressInterval replaces progressInterval on a stream with one watch,
// where an answer costs etcd next to nothing.
const ownProgressInterval = 20 * time.Millisecond

// streamNames numbers the streams that belong to one watch, in all clients: two
// clients of an etcd in the same process share its watcher.
var streamNames atomic.Uint64

// WithOwnStream gives the client's watch a gRPC stream that it shares with no
// other, so that no other watch delays its progress. Such a client opens one
// Stream at a time. As nobody else asks on that stream, and nobody asks before
// etcd has acknowledged the watch, progress is believed also where it does not
// go beyond the acknowledgement: an etcd in which nothing happens answers too.
func WithOwnStream() Option {
	return func(c *Client) {
		c.own.used = true
		c.progress.interval = ownProgressInterval
	}
}

// ownStream is the gRPC stream of a client made WithOwnStream.
type ownStream struct {
	used         bool // fixed after New
	name         atomic.Uint64
	acknowledged atomic.Bool
}

// renew takes another gRPC stream for the next watch. On the old one an answer
// to an earlier question may still be on its way.
func (o *ownStream) renew() {
	if !o.used {
		return
	}
	o.acknowledged.Store(false)
	o.name.Store(streamNames.Add(1))
}

// watchContext gives watches and progress requests their gRPC metadata, by
// which etcd's client decides whether they share a stream. Sharing is what makes
// one progress request reach every watch. A watch that requires a leader is
// ended by etcd when there is none, instead of staying silent.
func (c *Client) watchContext(ctx context.Context) context.Context {
	md := metadata.MD{}
	if c.own.used {
		md.Set("triune-watch", strconv.FormatUint(c.own.name.Load(), 10))
	}
	return clientv3.WithRequireLeader(metadata.NewOutgoingContext(ctx, md))
}
