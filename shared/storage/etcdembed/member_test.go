package etcdembed

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick returns the configuration of a member that starts within some 30 ms.
func quick(t *testing.T) *embed.Config {
	t.Helper()
	c := embed.NewConfig()
	c.Dir = filepath.Join(t.TempDir(), "etcd")
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	c.UnsafeNoFsync = true
	c.EnableGRPCGateway = false
	c.TickMs, c.ElectionMs = 2, 20
	c.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenPeerUrls = nil
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	return c
}

func start(t *testing.T) *Member {
	t.Helper()
	m, err := Start(t.Context(), quick(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// calls has one call of each kind that reaches the member. Only that they return matters, not
// what they return.
var calls = map[string]func(context.Context, *clientv3.Client) error{
	"range": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Get(ctx, "k", clientv3.WithPrefix())
		return err
	},
	"serializable range": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithSerializable())
		return err
	},
	"put": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, "k", "v")
		return err
	},
	"delete": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Delete(ctx, "k", clientv3.WithPrevKV())
		return err
	},
	"transaction": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Version("k"), "=", 0)).
			Then(clientv3.OpPut("k", "v")).Else(clientv3.OpGet("k")).Commit()
		return err
	},
	"compaction": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Compact(ctx, 1, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil
		}
		return err
	},
	"status": func(ctx context.Context, c *clientv3.Client) error {
		endpoint := "" // the client in this process
		if endpoints := c.Endpoints(); len(endpoints) > 0 {
			endpoint = endpoints[0]
		}
		_, err := c.Status(ctx, endpoint)
		return err
	},
	"lease": func(ctx context.Context, c *clientv3.Client) error {
		lease, err := c.Grant(ctx, 60)
		if err != nil {
			return err
		}
		if _, err := c.KeepAliveOnce(ctx, lease.ID); err != nil {
			return err
		}
		if _, err := c.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys()); err != nil {
			return err
		}
		_, err = c.Revoke(ctx, lease.ID)
		return err
	},
	"leases": func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Leases(ctx)
		return err
	},
	"watch": func(ctx context.Context, c *clientv3.Client) error {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		resp, ok := <-c.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
		if !ok {
			return errors.New("the watch has ended")
		}
		return resp.Err()
	},
}

// TestCallsOutliveTheMember checks that calls fail with errors that goroutines make during
// and after the end of a member.
func TestCallsOutliveTheMember(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		closeUnderLoad(t)
	}
}

func closeUnderLoad(t *testing.T) {
	m := start(t)
	// A long-lived watch and a long-lived keepalive.
	lasting, end := context.WithCancel(t.Context())
	defer end()
	events := m.Client.Watch(lasting, "k", clientv3.WithPrefix(), clientv3.WithPrevKV())
	lease, err := m.Client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	alive, err := m.Client.KeepAlive(lasting, lease.ID)
	if err != nil {
		t.Fatal(err)
	}

	var callers, begun sync.WaitGroup
	for name, do := range calls {
		begun.Add(1)
		callers.Go(func() {
			err := do(t.Context(), m.Client)
			begun.Done()
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for err == nil {
				err = do(t.Context(), m.Client)
			}
			for range 10 { // this caller is not stopped before the member
				_ = do(t.Context(), m.Client)
			}
		})
	}
	begun.Wait()
	var closers sync.WaitGroup
	for _, i := range rand.Perm(3) {
		closers.Go([]func(){m.Close, m.Close, func() { _ = m.Client.Close() }}[i])
	}
	closers.Wait()
	for range events {
	}
	for range alive {
	}
	for name, do := range calls {
		if err := do(t.Context(), m.Client); err == nil {
			t.Errorf("%s: a closed member answers", name)
		}
	}
	if _, err := m.Client.Status(t.Context(), ""); !errors.Is(err, ErrClosed) {
		t.Errorf("status of a closed member: %v", err)
	}
	callers.Wait()
}

// TestStreamsEndWithTheGate: streams end even if the client is not closed, for example because
// it was copied.
func TestStreamsEndWithTheGate(t *testing.T) {
	m := start(t)
	events := m.Client.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	<-events
	m.gate.close()
	select {
	case resp, ok := <-events:
		if ok && resp.Err() == nil {
			t.Errorf("got %+v", resp)
		}
	case <-time.After(20 * time.Second):
		t.Error("a watch outlives the gate")
	}
}

// TestRequestsThroughTheListeners: clients over gRPC send requests until they fail; one of them
// never ends its watch.
func TestRequestsThroughTheListeners(t *testing.T) {
	m := start(t)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + m.Addrs()[0].String()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := c.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	<-events
	var callers, begun sync.WaitGroup
	for name, do := range calls {
		begun.Add(1)
		callers.Go(func() {
			err := do(ctx, c)
			begun.Done()
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for err == nil {
				err = do(ctx, c)
			}
		})
	}
	begun.Wait()
	m.Close()
	cancel()
	callers.Wait()
	for range events {
	}
}

func TestStartFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := quick(t)
	config.Dir = file
	if _, err := Start(t.Context(), config); err == nil {
		t.Error("a member has its data in a file")
	}
}

func TestStartIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no time")
	cancel(reason)
	m, err := Start(ctx, quick(t))
	if err == nil { // it was ready immediately, which is fine
		m.Close()
	} else if !errors.Is(err, reason) {
		t.Errorf("got %v", err)
	}
}

// TestClientHasNoMoreThanItNeeds: other services return an error instead of panicking.
func TestClientHasNoMoreThanItNeeds(t *testing.T) {
	c := start(t).Client
	_, defragment := c.Defragment(t.Context(), "")
	_, members := c.MemberList(t.Context())
	_, roles := c.RoleList(t.Context())
	for _, err := range []error{defragment, members, roles} {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
	}
}
