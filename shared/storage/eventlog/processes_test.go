package eventlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"triune.dev/shared/storage/etcdembed"
)

// Members of etcd, servers of NATS, and relays run as processes of their own, which can be
// paused, killed and restarted. A process is this test binary with a role.

const roleVariable = "TRIUNE_EVENTLOG_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// part is the configuration of a process, passed on its command line.
type part struct {
	// For all roles.
	Name string
	// For servers and members.
	Dir             string
	Port, PeersPort int
	// For servers: the addresses of the peers, and of the monitoring.
	Routes  []string
	Monitor int
	// For members: the cluster to bootstrap or join, the peer URL, and the HTTP proxy to the
	// peers.
	Members, URL, Proxy string
	Joins               bool
	// For relays.
	Etcd, NATS []string
	Replicas   int
}

// play runs a role until standard input ends.
func play(role string) error {
	var p part
	if err := json.Unmarshal([]byte(os.Args[1]), &p); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	switch role {
	case "etcd":
		return playEtcd(ctx, p)
	case "nats":
		return playNATS(ctx, p)
	case "relay":
		return playRelay(ctx, p)
	}
	return fmt.Errorf("there is no role %q", role)
}

func playRelay(ctx context.Context, p part) error {
	etcd, err := dialEtcd(p.Etcd)
	if err != nil {
		return err
	}
	defer etcd.Close()
	conn, err := Connect(ConnectOptions{URLs: p.NATS, Name: p.Name})
	if err != nil {
		return err
	}
	defer conn.Close()
	relay, err := NewRelay(RelayConfig{
		Etcd: etcd, Conn: conn, Routes: NewRoutes(DefaultCluster, "/registry"), Tiers: Tiers, Identity: p.Name,
		Stream: StreamOptions{Replicas: p.Replicas},
	})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// dialEtcd connects to members as the services do, with the keepalives of package etcdstore.
func dialEtcd(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second, Logger: nopLogger(),
	})
}

// playNATS runs a server whose peers are behind proxies. Servers gossip their routes, but not
// the address where this one really listens: nothing listens at the advertised address.
func playNATS(ctx context.Context, p part) error {
	options := &server.Options{
		ServerName: p.Name, Host: "127.0.0.1", Port: p.Port, HTTPHost: "127.0.0.1", HTTPPort: p.Monitor,
		JetStream: true, StoreDir: p.Dir, MaxPayload: 4 << 20, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: p.PeersPort, Advertise: "127.0.0.1:1"},
	}
	for _, route := range p.Routes {
		options.Routes = append(options.Routes, &url.URL{Scheme: "nats", Host: route})
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.Start()
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// playEtcd runs a member with the timing of a real one. Only its proxy can resolve the URLs of
// its peers.
func playEtcd(ctx context.Context, p part) error {
	for name, value := range map[string]string{"HTTP_PROXY": p.Proxy, "NO_PROXY": "", "no_proxy": ""} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	peer, err := url.Parse(p.URL)
	if err != nil {
		return err
	}
	local := func(port int) []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}
	}
	config := embed.NewConfig()
	config.Name, config.Dir, config.LogLevel, config.LogOutputs = p.Name, p.Dir, "fatal", []string{"stderr"}
	config.UnsafeNoFsync, config.EnableGRPCGateway = true, false // the tests kill processes, not machines
	config.ListenClientUrls, config.AdvertiseClientUrls = local(p.Port), local(p.Port)
	config.ListenPeerUrls, config.AdvertisePeerUrls = local(p.PeersPort), []url.URL{*peer}
	config.InitialCluster = p.Members
	if p.Joins {
		config.ClusterState = embed.ClusterStateFlagExisting
	}
	member, err := etcdembed.Start(ctx, config)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-member.Failed():
		return err
	}
}

// process is a running part.
type process struct {
	role  string
	part  part
	cmd   *exec.Cmd
	in    io.Closer
	ended chan struct{} // closed when the process has ended
}

func (p *process) start(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(p.part)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(self, string(text))
	p.cmd.Env = append(os.Environ(), roleVariable+"="+p.role)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	log := &prefixed{prefix: p.part.Name + ": ", to: t.Output()}
	p.cmd.Stderr = log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(p.kill)
}

// alive fails the test if the process has exited by itself.
func (p *process) alive(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		t.Fatalf("%s has ended by itself: %s", p.part.Name, p.cmd.ProcessState)
	default:
	}
}

// kill kills the process. Unlike a power cut, it keeps the files.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.in.Close()
}

func (p *process) pause(t *testing.T, d time.Duration) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// prefixed writes lines with a prefix.
type prefixed struct {
	prefix string
	to     io.Writer
}

func (p *prefixed) Write(b []byte) (int, error) {
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if _, err := fmt.Fprintf(p.to, "%s%s\n", p.prefix, lines.Bytes()); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}
