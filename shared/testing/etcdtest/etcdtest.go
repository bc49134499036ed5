// Package etcdtest runs an etcd in a test. [Start] and [StartSecure] return a [Server]; Dial,
// DialAs and InProcess return clients of it.
package etcdtest

import (
	"context"
	"crypto/tls"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/storage/etcdembed"
)

// startLimit bounds one start.
const startLimit = 30 * time.Second

// Server is an etcd with one member, on a free port and in a directory that is removed at the
// end of the test.
type Server struct {
	member *etcdembed.Member
	cfg    *embed.Config
	pki    *pki.PKI // nil without TLS
}

// Start runs an etcd until the test ends. Short ticks make it ready in well under a second.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{cfg: config(t, "http")}
	s.run(t)
	t.Cleanup(s.Stop)
	return s
}

// StartSecure is Start with TLS: the server asks for client certificates and takes their
// common names for users, where authentication is enabled. See DialAs.
func StartSecure(t testing.TB, users ...string) *Server {
	t.Helper()
	o := pki.Options{}
	for _, user := range users {
		o.Clients = append(o.Clients, pki.Client{Name: "etcd/" + user, CommonName: user, Authority: pki.EtcdCA})
	}
	made, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: config(t, "https"), pki: made}
	info := &s.cfg.ClientTLSInfo
	info.CertFile, info.KeyFile = made.EtcdServer.CertFile, made.EtcdServer.KeyFile
	info.TrustedCAFile, info.ClientCertAuth = made.EtcdCA.CertFile, true
	s.run(t)
	t.Cleanup(s.Stop)
	return s
}

// config returns the configuration of a server with client URLs of the scheme.
func config(t testing.TB, scheme string) *embed.Config {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(t.TempDir(), "etcd")
	cfg.LogLevel = "fatal"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	cfg.EnableGRPCGateway = false
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.BcryptCost = 4 // the least
	client, peer := url.URL{Scheme: scheme, Host: "127.0.0.1:0"}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return cfg
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

// Stop stops the server; a test may call it earlier. Its clients then return errors.
func (s *Server) Stop() { s.member.Close() }

// Restart stops the server and starts it again with its data and its address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.cfg.ListenClientUrls = []url.URL{{Scheme: s.cfg.ListenClientUrls[0].Scheme, Host: s.member.Addrs()[0].String()}}
	s.Stop()
	s.run(t)
}

// Dir returns the data directory of the server. A test may replace it while the server is
// stopped.
func (s *Server) Dir() string { return s.cfg.Dir }

// URL returns the URL for clients.
func (s *Server) URL() string {
	return s.cfg.ListenClientUrls[0].Scheme + "://" + s.member.Addrs()[0].String()
}

// InProcess returns the client that calls the server without a connection. It is closed with
// the server.
func (s *Server) InProcess() *clientv3.Client { return s.member.Client }

// Dial returns a client over gRPC.
func (s *Server) Dial(t testing.TB) *clientv3.Client {
	t.Helper()
	return s.dial(t, nil)
}

// DialAs returns a client with the certificate of a user of StartSecure.
func (s *Server) DialAs(t testing.TB, user string) *clientv3.Client {
	t.Helper()
	ca, client := s.Files(user)
	pair, err := client.Load()
	if err != nil {
		t.Fatal(err)
	}
	authorities, err := pki.LoadPool(ca)
	if err != nil {
		t.Fatal(err)
	}
	return s.dial(t, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: authorities, MinVersion: tls.VersionTLS12})
}

// Files returns the CA file of a server of StartSecure, and the certificate of a user.
func (s *Server) Files(user string) (ca string, client pki.Pair) {
	return s.pki.EtcdCA.CertFile, s.pki.Clients["etcd/"+user]
}

func (s *Server) dial(t testing.TB, config *tls.Config) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.URL()}, TLS: config, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("dial etcd: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Goroutines returns options of a later leak check that ignore the goroutines that run now,
// and those that a starting etcd will start.
func Goroutines() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreCurrent(),
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/embed.(*serveCtx).startHandler.func1"),
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/etcdserver.(*EtcdServer).GoAttach.func1"),
	}
}
