package etcdembed

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// watchServer keeps the gate open for as long as a stream lasts.
type watchServer struct {
	pb.WatchServer
	gate *gate
}

// Watch implements pb.WatchServer.
func (s watchServer) Watch(stream pb.Watch_WatchServer) error {
	if !s.gate.enter() {
		return ErrClosed
	}
	defer s.gate.leave()
	return s.WatchServer.Watch(stream)
}

// watchClient opens streams that end with the gate and do not stall.
//
// Those of v3client do when many watches end at once: client and member are
// joined by channels without room. etcd's client sends its cancellations from the
// goroutine that also takes responses; the member answers each of them; once the
// member waits for its answer to be taken and the client for its cancellation to
// be, no watch of the process ever hears of an event again. Between processes
// the buffers of gRPC stand in between. Here a queue does.
type watchClient struct {
	pb.WatchClient
	gate *gate
}

func newWatchClient(server *etcdserver.EtcdServer, g *gate) watchClient {
	return watchClient{adapter.WatchServerToWatchClient(watchServer{v3rpc.NewWatchServer(server), g}), g}
}

// Watch implements pb.WatchClient.
func (c watchClient) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	stream, err := c.WatchClient.Watch(c.gate.stream(ctx), opts...)
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
	pb.Watch_WatchClient

	filled sync.Cond

	mu      sync.Mutex
	waiting []*pb.WatchResponse
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

// Recv implements pb.Watch_WatchClient for its one reader.
func (q *queue) Recv() (*pb.WatchResponse, error) {
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
