// Package etcdtest runs a real etcd inside a test.
package etcdtest

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"triune.dev/shared/etcdembed"
)

// startLimit bounds one start.
const startLimit = 30 * time.Second

// Server is one etcd with one member, on a free port and in a directory that
// the test removes.
type Server struct {
	member *etcdembed.Member
	cfg    *embed.Config
}

// Start runs an etcd until the test ends. Its ticks are those of a single
// member in one process, so that it is ready in well under a second.
func Start(t testing.TB) *Server {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(t.TempDir(), "etcd")
	cfg.LogLevel = "fatal"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	cfg.EnableGRPCGateway = false
	cfg.TickMs, cfg.ElectionMs = 10, 100
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{local}, []url.URL{local}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	s := &Server{cfg: cfg}
	s.run(t)
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	member, err := etcdembed.Start(ctx, s.cfg)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	s.member = member
}

// Stop ends the server; a test may do so before it ends itself. Clients in the process
// get errors from then on.
func (s *Server) Stop() { s.member.Close() }

// Restart stops the server and runs it again with its data and its address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: s.member.Addrs()[0].String()}}
	s.Stop()
	s.run(t)
}

// Dir is where the server keeps its data. A test may replace it while the server is
// stopped.
func (s *Server) Dir() string { return s.cfg.Dir }

// URL is where clients dial.
func (s *Server) URL() string { return "http://" + s.member.Addrs()[0].String() }

// InProcess returns the client that reaches the server by function calls. It ends with
// the server.
func (s *Server) InProcess() *clientv3.Client { return s.member.Client }

// Dial returns a client over gRPC.
func (s *Server) Dial(t testing.TB) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.URL()}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("dial etcd: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Goroutines are those that run now, and those that a starting etcd has yet to
// start, for a leak check later.
func Goroutines() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreCurrent(),
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/embed.(*serveCtx).startHandler.func1"),
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/etcdserver.(*EtcdServer).GoAttach.func1"),
	}
}
