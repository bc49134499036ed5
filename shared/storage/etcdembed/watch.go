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

// watchServer holds the gate while a stream lasts.
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

// watchClient opens streams that end when the gate closes and cannot deadlock.
//
// Those of v3client can, when many watches end at once: client and member are connected by
// unbuffered channels. etcd's client sends its cancellations from the goroutine that also
// receives responses, and the member answers each of them. Once the member waits for its
// response to be received and the client for its cancellation, no watch of the process ever
// gets an event again. Between processes, the buffers of gRPC prevent that. Here a queue does.
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

// queue holds the responses that the member has sent and the client has not received. It is
// unbounded, because etcd's client stores what it receives in unbounded buffers anyway.
type queue struct {
	pb.Watch_WatchClient

	filled sync.Cond

	mu      sync.Mutex
	waiting []*pb.WatchResponse
	err     error // the error that ended the stream
}

// fill receives responses until the stream ends, at the latest with its context.
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

// Recv implements pb.Watch_WatchClient for a single reader.
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
