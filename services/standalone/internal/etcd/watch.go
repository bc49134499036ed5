package etcd

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// newWatcher returns a watcher that calls the member directly and does not stall.
//
// The one of v3client does when many watches end at once: client and member are
// joined by channels without room. etcd's client sends its cancellations from the
// goroutine that also takes responses; the member answers each of them; once the
// member waits for its answer to be taken and the client for its cancellation to
// be, no watch of the process ever hears of an event again. Between processes
// the buffers of gRPC stand in between. Here a queue does.
func newWatcher(server *etcdserver.EtcdServer, client *clientv3.Client) clientv3.Watcher {
	direct := adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(server))
	return clientv3.NewWatchFromWatchClient(drained{direct}, client)
}

// drained opens streams whose responses are always taken at once.
type drained struct{ etcdserverpb.WatchClient }

// Watch implements etcdserverpb.WatchClient.
func (d drained) Watch(ctx context.Context, opts ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	stream, err := d.WatchClient.Watch(ctx, opts...)
	if err != nil {
		return nil, err
	}
	q := &queue{Watch_WatchClient: stream}
	q.filled.L = &q.mu
	go q.fill()
	return q, nil
}

// queue holds what the member has sent and the client has not yet taken. It has
// no bound: etcd's client keeps what it takes in buffers without a bound anyway.
type queue struct {
	etcdserverpb.Watch_WatchClient

	filled sync.Cond

	mu      sync.Mutex
	waiting []*etcdserverpb.WatchResponse
	err     error // with which the stream has ended
}

// fill takes responses until the stream ends, as it does with its context.
func (q *queue) fill() {
	for {
		resp, err := q.Watch_WatchClient.Recv()
		q.mu.Lock()
		if err != nil {
			q.err = err
		} else {
			q.waiting = append(q.waiting, resp)
		}
		q.mu.Unlock()
		q.filled.Signal()
		if err != nil {
			return
		}
	}
}

// Recv implements etcdserverpb.Watch_WatchClient for its one reader.
func (q *queue) Recv() (*etcdserverpb.WatchResponse, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && q.err == nil {
		q.filled.Wait()
	}
	if len(q.waiting) == 0 {
		return nil, q.err
	}
	resp := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return resp, nil
}
