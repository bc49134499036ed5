package kv

import (
	"context"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// After a broken connection, etcd's client silently sets up all watches again. The etcd may
// then have another history, because it was restored from a backup. To detect that, each
// response carries the generation of its gRPC stream.

// newWatcher returns etcd's own watcher of a client in the same process, which
// has no connection to lose, and otherwise one whose responses carry the
// generation of their gRPC stream.
func newWatcher(etcd *clientv3.Client) clientv3.Watcher {
	conn := etcd.ActiveConnection()
	if conn == nil {
		return etcd.Watcher
	}
	return clientv3.NewWatchFromWatchClient(&generations{WatchClient: etcdserverpb.NewWatchClient(conn)}, etcd)
}

// generations counts the gRPC streams that are opened.
type generations struct {
	etcdserverpb.WatchClient
	opened atomic.Uint64
}

// Watch implements etcdserverpb.WatchClient.
func (g *generations) Watch(ctx context.Context, opts ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	stream, err := g.WatchClient.Watch(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &marked{Watch_WatchClient: stream, generation: g.opened.Add(1)}, nil
}

// marked writes its generation into each response, in place of the raft term, which watches
// do not use.
type marked struct {
	etcdserverpb.Watch_WatchClient
	generation uint64
}

// Recv implements etcdserverpb.Watch_WatchClient.
func (m *marked) Recv() (*etcdserverpb.WatchResponse, error) {
	resp, err := m.Watch_WatchClient.Recv()
	if resp.GetHeader() != nil {
		resp.Header.RaftTerm = m.generation
	}
	return resp, err
}

func generationOf(resp clientv3.WatchResponse) uint64 { return resp.Header.RaftTerm }
