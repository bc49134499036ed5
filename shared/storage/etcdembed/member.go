package etcdembed

import (
	"context"
	"net"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// Member is a running etcd. Its methods are safe for concurrent use.
type Member struct {
	// Client calls the member without gRPC. It has the services that an API server uses: KV,
	// Lease, Watcher, and Status of Maintenance. All others return an error with the code
	// Unimplemented. Close closes it.
	Client *clientv3.Client

	etcd *embed.Etcd
	gate *gate
	stop func()
}

// Start starts a member and returns once it serves. It fails if the member fails or ctx is
// done. The caller must Close the member.
func Start(ctx context.Context, config *embed.Config) (*Member, error) {
	own := *config
	// Requests that arrive through the listeners must also end before the database is closed.
	own.GRPCAdditionalServerOptions = append(slices.Clone(own.GRPCAdditionalServerOptions), grpc.WaitForHandlers(true))
	etcd, err := embed.StartEtcd(&own)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		etcd.Close()
		return nil, err
	}
	m := &Member{etcd: etcd, gate: newGate()}
	m.Client = newClient(etcd.Server, m.gate)
	m.stop = sync.OnceFunc(m.close)
	return m, nil
}

// Addrs returns the addresses that the member listens on, those for clients first.
func (m *Member) Addrs() []net.Addr {
	var addrs []net.Addr
	for _, l := range m.etcd.Clients {
		addrs = append(addrs, l.Addr())
	}
	for _, l := range m.etcd.Peers {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// Failed returns a channel that delivers an error if the member stops by itself. Close closes
// the channel.
func (m *Member) Failed() <-chan error { return m.etcd.Err() }

// Close closes the client, waits for its calls in flight, and then stops the member. Each call
// is bounded by etcd's own request timeout. Everything that the member has acknowledged is on
// disk. Calling Close again does nothing.
func (m *Member) Close() { m.stop() }

func (m *Member) close() {
	_ = m.Client.Close() // the client has no connection, so closing it cannot fail
	m.gate.close()
	m.etcd.Close()
}
