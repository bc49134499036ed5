package etcdembed

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// leaseTimeout is how long etcd's client waits for the first response to a keepalive, as in
// v3client.
const leaseTimeout = time.Second

// newClient is etcd's v3client.New with a gate in front of the services, and with watches that
// cannot deadlock.
func newClient(server *etcdserver.EtcdServer, g *gate) *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(server.Logger()))
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(kvServer{v3rpc.NewQuotaKVServer(server), g}), c)
	lease := leaseClient{adapter.LeaseServerToLeaseClient(leaseServer{v3rpc.NewQuotaLeaseServer(server), g}), g}
	c.Lease = clientv3.NewLeaseFromLeaseClient(lease, c, leaseTimeout)
	c.Watcher = clientv3.NewWatchFromWatchClient(newWatchClient(server, g), c)
	maintenance := &maintenanceServer{status: v3rpc.NewMaintenanceServer(server, nil).Status, gate: g}
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(adapter.MaintenanceServerToMaintenanceClient(maintenance), c)
	c.Cluster = clientv3.NewClusterFromClusterClient(adapter.ClusterServerToClusterClient(&pb.UnimplementedClusterServer{}), c)
	c.Auth = clientv3.NewAuthFromAuthClient(adapter.AuthServerToAuthClient(&pb.UnimplementedAuthServer{}), c)
	return c
}

type kvServer struct {
	pb.KVServer
	gate *gate
}

// Range implements pb.KVServer, as do its siblings below.
func (s kvServer) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return call(ctx, s.gate, s.KVServer.Range, r)
}

func (s kvServer) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return call(ctx, s.gate, s.KVServer.Put, r)
}

func (s kvServer) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return call(ctx, s.gate, s.KVServer.DeleteRange, r)
}

func (s kvServer) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return call(ctx, s.gate, s.KVServer.Txn, r)
}

func (s kvServer) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return call(ctx, s.gate, s.KVServer.Compact, r)
}

type leaseServer struct {
	pb.LeaseServer
	gate *gate
}

// LeaseGrant implements pb.LeaseServer, as do its siblings below.
func (s leaseServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return call(ctx, s.gate, s.LeaseServer.LeaseGrant, r)
}

func (s leaseServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return call(ctx, s.gate, s.LeaseServer.LeaseRevoke, r)
}

func (s leaseServer) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return call(ctx, s.gate, s.LeaseServer.LeaseTimeToLive, r)
}

func (s leaseServer) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	return call(ctx, s.gate, s.LeaseServer.LeaseLeases, r)
}

func (s leaseServer) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	if !s.gate.enter() {
		return ErrClosed
	}
	defer s.gate.leave()
	return s.LeaseServer.LeaseKeepAlive(stream)
}

// leaseClient ends keepalives when the gate closes.
type leaseClient struct {
	pb.LeaseClient
	gate *gate
}

// LeaseKeepAlive implements pb.LeaseClient.
func (c leaseClient) LeaseKeepAlive(ctx context.Context, opts ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return c.LeaseClient.LeaseKeepAlive(c.gate.stream(ctx), opts...)
}

// maintenanceServer implements only Status. Defragment would panic without the health service
// of a gRPC server.
type maintenanceServer struct {
	pb.UnimplementedMaintenanceServer
	status func(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error)
	gate   *gate
}

// Status implements pb.MaintenanceServer.
func (s *maintenanceServer) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return call(ctx, s.gate, s.status, r)
}
