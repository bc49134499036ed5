package eventlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/shared/testing/etcdtest"
)

// newClusterBench has three NATS servers, and streams with a replica on each.
func newClusterBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{server: etcdtest.Start(t), routes: NewRoutes(DefaultCluster, "/registry"), ackTimeout: 3 * time.Second}
	b.stream.Replicas = 3
	b.etcd = b.server.Dial(t)
	var routes []*url.URL
	ports := make([]int, 3)
	for i := range ports {
		ports[i] = freePort(t)
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", ports[i])})
	}
	for i, port := range ports {
		b.cluster = append(b.cluster, &natsServer{opts: server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true,
			StoreDir: filepath.Join(t.TempDir(), "nats"), MaxPayload: 4 << 20, NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}, Routes: routes,
		}})
	}
	b.nats = b.cluster[0]
	for _, s := range b.cluster {
		s.run(t)
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
	}
	b.clusterReady(t)
	return b
}

func (b *bench) clusterReady(t testing.TB) {
	t.Helper()
	eventually(t, "the cluster has a leader", func() bool {
		for _, s := range b.cluster {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(b.cluster) {
				return true
			}
		}
		return false
	})
}

// freePort returns a port that nobody listens on and that it has not returned before. It is
// below 32768, because the kernel assigns higher ports to connections.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 20_000 + rand.IntN(10_000)
		if _, taken := givenPorts.LoadOrStore(port, true); taken {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

var givenPorts sync.Map // the keys are ports

// connectNATS connects to all NATS servers.
func (b *bench) connectNATS(t testing.TB) *nats.Conn {
	t.Helper()
	if len(b.cluster) == 0 && len(b.urls) == 0 {
		return b.nats.connect(t)
	}
	urls := b.urls
	for _, s := range b.cluster {
		urls = append(urls, s.ClientURL())
	}
	c, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// servers returns all NATS servers.
func (b *bench) servers() []*natsServer {
	if len(b.cluster) == 0 {
		return []*natsServer{b.nats}
	}
	return b.cluster
}

// restartNATS stops all servers, calls meanwhile to change their files, and starts them again.
func (b *bench) restartNATS(t testing.TB, meanwhile func(dir string)) {
	t.Helper()
	if len(b.cluster) == 0 {
		b.nats.restart(t, meanwhile)
		return
	}
	for _, s := range b.cluster {
		s.Shutdown()
		s.WaitForShutdown()
	}
	for _, s := range b.cluster {
		meanwhile(filepath.Join(s.opts.StoreDir, "jetstream"))
	}
	for _, s := range b.cluster {
		s.run(t)
	}
	b.clusterReady(t)
}

// coreLeader returns the leader of core's stream.
func (b *bench) coreLeader(t testing.TB) *natsServer {
	t.Helper()
	var leader *natsServer
	eventually(t, "the stream has a leader", func() bool {
		for _, s := range b.cluster {
			if s.Running() && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, b.routes.Stream(Core)) {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

// answers waits until NATS answers about the stream. On a busy machine, three servers once took
// more than half a minute after their elections.
func (b *bench) answers(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := js.Stream(ctx, b.routes.Stream(Core))
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("NATS does not tell of the stream in 2 minutes: %v", err)
		}
	}
}

func inCluster(t *testing.T, scenario func(t *testing.T, b *bench, v variant) string, variants ...variant) {
	if testing.Short() {
		t.Skip("three servers each, with elections: not in short mode, where the same cases run on one server")
	}
	for _, v := range append([]variant{asItIs}, variants...) {
		t.Run(v.name, func(t *testing.T) { try(t, scenario, newClusterBench, v) })
	}
}

func TestClusterLeaseOfAThousandKeysExpiresWhileTheRelayIsKilled(t *testing.T) {
	inCluster(t, leaseExpires, dedupe)
}

func TestClusterAnAckIsLostAfterTheAppend(t *testing.T) { inCluster(t, ackLost, dedupe) }

func TestClusterAPausedRelayResumesAfterASuccessorWasElected(t *testing.T) {
	inCluster(t, pausedRelay, fenceBySeq)
}

func TestClusterTheStreamIsPurged(t *testing.T) { inCluster(t, purged, gapBySeq) }

// The naive variants of these two cases are only found with a single server. A cluster has no
// leader for a while and creates no consumers; a reader without one starts again at the end of
// the stream, however it counts.
func TestClusterTheFilesOfTheStreamAreDeleted(t *testing.T) { inCluster(t, filesDeleted) }

func TestClusterTheServersAreKilledBeforeTheFlush(t *testing.T) { inCluster(t, killedBeforeFlush) }

func TestClusterEtcdIsCompactedPastTheStream(t *testing.T) { inCluster(t, compactedPast, gapBySeq) }

func TestClusterEtcdIsRestoredFromABackup(t *testing.T) { inCluster(t, restored, gapBySeq) }

func TestClusterTheLargestObject(t *testing.T) { inCluster(t, largest, dedupe) }

// The leader steps down and its server is restarted, in turn, while events are published.
func TestClusterLeaderChangesOfTheStreamUnderLoad(t *testing.T) {
	inCluster(t, leaderChanges, dedupe)
}

func leaderChanges(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	var last atomic.Int64
	writing, stop := context.WithCancel(t.Context())
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for i := 0; writing.Err() == nil; i++ {
			last.Store(b.put(t, fmt.Sprintf("pods/ns%d/p%d", i%3, i%17), fmt.Sprint(i)))
			if i%50 == 49 {
				if _, err := b.etcd.Delete(t.Context(), "/registry/pods/ns1/", withPrefix); err != nil {
					return
				}
			}
		}
	}()
	js, err := jetstream.New(b.connectNATS(t))
	if err != nil {
		t.Fatal(err)
	}
	stepDown := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _ = js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+b.routes.Stream(Core), nil)
		b.coreLeader(t)
	}
	reached := func() {
		if !v.fails {
			sink.until(t, last.Load())
		}
	}
	for range 3 {
		stepDown()
		reached()
	}
	if !v.fails {
		for range 2 {
			down := b.coreLeader(t)
			down.Shutdown()
			down.WaitForShutdown()
			reached()
			down.run(t)
			b.clusterReady(t)
			reached()
			stepDown()
			reached()
		}
	}
	stop()
	<-wrote
	end := b.put(t, "pods/ns0/last", "x")
	if wrong := b.outcome(t, w, sink, v, end); wrong != "" {
		return wrong
	}
	b.answers(t, js)
	waitSource(t, r, sink, SourceStream)
	t.Logf("status %+v", r.Status())
	return b.checkStream(t)
}

// A server that was offline catches up from the other servers' snapshot, not through the log,
// and then leads. It must still know the last message.
func TestClusterAServerThatCaughtUpLeads(t *testing.T) { inCluster(t, caughtUpLeads, dedupe) }

func caughtUpLeads(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/a", "1"))
	leader := b.coreLeader(t)
	var away *natsServer
	for _, s := range b.cluster {
		if s != leader {
			away = s
		}
	}
	away.Shutdown()
	away.WaitForShutdown()
	for i := range 300 {
		b.put(t, fmt.Sprintf("pods/ns/p%d", i%7), fmt.Sprint(i))
	}
	if _, err := b.etcd.Delete(t.Context(), "/registry/pods/", withPrefix); err != nil {
		t.Fatal(err)
	}
	away.run(t)
	b.clusterReady(t)
	for i := range 50 {
		b.put(t, fmt.Sprintf("pods/ns/q%d", i%7), fmt.Sprint(i))
	}
	// Stop every other server.
	leader = b.coreLeader(t)
	if leader != away {
		leader.Shutdown()
		leader.WaitForShutdown()
		b.coreLeader(t)
		for i := range 50 {
			b.put(t, fmt.Sprintf("pods/ns/r%d", i%7), fmt.Sprint(i))
		}
		leader.run(t)
		b.clusterReady(t)
	}
	end := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, end); wrong != "" {
		return wrong
	}
	waitSource(t, r, sink, SourceStream)
	end = b.put(t, "pods/ns/last", "y")
	t.Logf("status %+v", r.Status())
	return b.outcome(t, w, sink, v, end)
}
