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
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/internal/etcdtest"
)

// Servers and relays as processes of their own, which can be stopped and continued,
// killed, and started again. A process is this test binary with a role.

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

// part is what a process is told on its command line.
type part struct {
	// Of a server.
	Name, Dir        string
	Port, RoutesPort int
	Routes           []string
	// Of a relay.
	Etcd     string
	NATS     []string
	Replicas int
}

// play is the life of such a process: until its standard input ends.
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
	if role == "nats" {
		return playNATS(ctx, p)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Etcd}, Logger: nopLogger()})
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
		Stream: StreamOptions{Replicas: p.Replicas}, LeaseTTL: 2 * time.Second,
	})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

func playNATS(ctx context.Context, p part) error {
	options := &server.Options{
		ServerName: p.Name, Host: "127.0.0.1", Port: p.Port, JetStream: true, StoreDir: p.Dir, MaxPayload: 4 << 20, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: p.RoutesPort},
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

// process is a running part.
type process struct {
	role string
	part part
	cmd  *exec.Cmd
	in   io.Closer
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
	t.Cleanup(p.kill)
}

// kill ends the process as a power cut does, but for the files.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
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

// prefixed writes lines behind a name.
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

// Relays and servers are paused, killed, and robbed of their files under load. Every
// write is told once and in order, no watch ends, and the streams carry events again
// soon after each fault.
func TestFaultsUnderLoad(t *testing.T) {
	b := &bench{server: etcdtest.Start(t), routes: NewRoutes(DefaultCluster, "/registry")}
	b.etcd = b.server.Dial(t)
	b.stream.Replicas = 3
	servers, relays := b.processes(t)
	w := newWitness(t, b.etcd, b.routes)
	r, sink := b.read(t, func(r *Reader) { r.cfg.Patience = 3 * time.Second })
	waitSource(t, r, sink, SourceStream)

	var writes atomic.Int64
	writing, stop := context.WithCancel(t.Context())
	var load, watching sync.WaitGroup
	load.Go(func() {
		large := strings.Repeat("x", 50<<10)
		for i := 0; writing.Err() == nil; i++ {
			b.put(t, fmt.Sprintf("pods/ns/p%d", i%100), fmt.Sprint(i))
			if i%20 == 0 {
				b.put(t, fmt.Sprintf("configmaps/ns/c%d", i%7), large)
			}
			writes.Add(1)
			time.Sleep(2 * time.Millisecond)
		}
	})
	var fallback, all atomic.Int64
	watching.Go(func() {
		for tick := time.NewTicker(10 * time.Millisecond); writing.Err() == nil; <-tick.C {
			if all.Add(1); r.Status().Source == SourceEtcd {
				fallback.Add(1)
			}
		}
	})
	defer func() {
		stop()
		load.Wait()
		watching.Wait()
	}()

	rejoin := func(s *process, lose bool) {
		s.kill()
		if lose {
			removeAll(t, s.part.Dir)
		}
		time.Sleep(time.Second)
		s.start(t)
	}
	faults := []struct {
		name string
		do   func(round int)
	}{
		{"the relays are paused for longer than their lease, one after the other", func(int) {
			for _, relay := range relays {
				relay.pause(t, 4*time.Second)
			}
		}},
		{"a server is killed and loses its files", func(round int) { rejoin(servers[round%3], true) }},
		{"a server is paused", func(round int) { servers[(round+1)%3].pause(t, 4*time.Second) }},
		{"a server is killed", func(round int) { rejoin(servers[(round+2)%3], false) }},
		{"a relay is killed", func(round int) {
			relays[round%2].kill()
			relays[round%2].start(t)
		}},
	}
	rounds := 1
	if !testing.Short() {
		rounds = 9
	}
	for round := range rounds {
		for i, fault := range faults {
			if testing.Short() && i > 1 {
				break
			}
			fault.do(round)
			// It may take some time until anybody notices, and some until all is well.
			start := time.Now()
			eventually(t, "the stream carries events after "+fault.name, func() bool {
				before := r.Status()
				time.Sleep(500 * time.Millisecond)
				now := r.Status()
				return before.Source == SourceStream && now.Since.Equal(before.Since) && now.Revision > before.Revision
			})
			b.level(t, time.Minute)
			t.Logf("%s: well after %s", fault.name, time.Since(start).Round(time.Millisecond))
		}
	}
	stop()
	load.Wait()
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
		t.Error(wrong)
	}
	waitSource(t, r, sink, SourceStream)
	if wrong := b.sound(t); wrong != "" {
		t.Error(wrong)
	}
	t.Logf("%d writes, %.1f %% of the time on etcd, %+v", writes.Load(), 100*float64(fallback.Load())/float64(all.Load()), r.Status())
}

// processes starts three servers and two relays.
func (b *bench) processes(t *testing.T) (servers, relays []*process) {
	t.Helper()
	dir := t.TempDir()
	var routes, urls []string
	for i := range 3 {
		p := &process{role: "nats", part: part{
			Name: fmt.Sprint("n", i), Dir: filepath.Join(dir, fmt.Sprint("n", i)), Port: freePort(t), RoutesPort: freePort(t),
		}}
		servers = append(servers, p)
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", p.part.RoutesPort))
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", p.part.Port))
	}
	for _, s := range servers {
		s.part.Routes = routes
		s.start(t)
	}
	b.urls = urls
	eventually(t, "NATS answers", func() bool {
		conn, err := nats.Connect(strings.Join(urls, ","))
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	for i := range 2 {
		p := &process{role: "relay", part: part{Name: fmt.Sprint("relay", i), Etcd: b.server.URL(), NATS: urls, Replicas: 3}}
		relays = append(relays, p)
		p.start(t)
	}
	return servers, relays
}
