// Package watchspy is a proxy between the servers and etcd that records the open watches.
// etcd's metrics count them, but do not name their clients.
package watchspy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// watchMethod is the only method that is inspected.
const watchMethod = "/etcdserverpb.Watch/Watch"

// Watch is an open watch.
type Watch struct {
	// Client is the address of the connection.
	Client string
	// Key and End are the range; End is empty for a single key.
	Key, End string
}

// Spy is a gRPC proxy in front of one etcd.
type Spy struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	addr   string

	mu   sync.Mutex
	open map[*stream]map[int64]Watch
}

// stream is a gRPC stream of watches.
type stream struct {
	asked []Watch // without an answer; etcd answers in order
}

// New starts a proxy for an etcd at a host and port, until Close.
func New(target string) (*Spy, error) {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		return nil, fmt.Errorf("spy on %s: %w", target, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("spy on %s: %w", target, err)
	}
	s := &Spy{conn: conn, addr: l.Addr().String(), open: map[*stream]map[int64]Watch{}}
	s.server = grpc.NewServer(grpc.UnknownServiceHandler(s.pass), grpc.ForceServerCodec(raw{}),
		grpc.MaxRecvMsgSize(1<<30), grpc.MaxSendMsgSize(1<<30), grpc.MaxConcurrentStreams(1<<20))
	go func() { _ = s.server.Serve(l) }() // it ends with Close
	return s, nil
}

// URL returns the URL of etcd for servers.
func (s *Spy) URL() string { return "http://" + s.addr }

// Close closes all connections.
func (s *Spy) Close() {
	s.server.Stop()
	s.conn.Close()
}

// Open returns the watches that are currently open.
func (s *Spy) Open() []Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Watch
	for _, watches := range s.open {
		for _, w := range watches {
			all = append(all, w)
		}
	}
	return all
}

// pass serves one call of any method.
func (s *Spy) pass(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return status.Error(codes.Internal, "a call without a method")
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	etcd, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	up, down := func([]byte) error { return nil }, func([]byte) error { return nil }
	if method == watchMethod {
		from := ""
		if p, ok := peer.FromContext(ctx); ok {
			from = p.Addr.String()
		}
		st := &stream{}
		s.mu.Lock()
		s.open[st] = map[int64]Watch{}
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.open, st)
		}()
		up = func(b []byte) error { return s.asked(st, from, b) }
		down = func(b []byte) error { return s.answered(st, b) }
	}
	go func() {
		for {
			var b []byte
			err := client.RecvMsg(&b)
			if errors.Is(err, io.EOF) {
				_ = etcd.CloseSend() // an error is returned below
				return
			}
			if err == nil {
				err = up(b)
			}
			if err == nil {
				err = etcd.SendMsg(&b)
			}
			if err != nil {
				cancel()
				return
			}
		}
	}()
	for {
		var b []byte
		if err := etcd.RecvMsg(&b); err != nil {
			client.SetTrailer(etcd.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := down(b); err != nil {
			return err
		}
		if err := client.SendMsg(&b); err != nil {
			return err
		}
	}
}

func (s *Spy) asked(st *stream, from string, b []byte) error {
	var r etcdserverpb.WatchRequest
	if err := r.Unmarshal(b); err != nil {
		return fmt.Errorf("decode a request to watch: %w", err)
	}
	if c := r.GetCreateRequest(); c != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.asked = append(st.asked, Watch{Client: from, Key: string(c.Key), End: string(c.RangeEnd)})
	}
	return nil
}

func (s *Spy) answered(st *stream, b []byte) error {
	var r etcdserverpb.WatchResponse
	if err := r.Unmarshal(b); err != nil {
		return fmt.Errorf("decode an answer about watches: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Created && len(st.asked) > 0 {
		s.open[st][r.WatchId] = st.asked[0]
		st.asked = st.asked[1:]
	}
	if r.Canceled {
		delete(s.open[st], r.WatchId)
	}
	return nil
}

// raw does not decode messages.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("marshal: %T is not bytes", v)
	}
	return *b, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unmarshal: %T is not bytes", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}
