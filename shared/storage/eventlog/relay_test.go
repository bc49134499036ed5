package eventlog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/testing/etcdtest"
)

// bench is an etcd, a NATS, and helpers to use them.
type bench struct {
	server *etcdtest.Server
	etcd   *clientv3.Client
	nats   *natsServer
	// cluster lists all servers if there are several; nats is one of them.
	cluster []*natsServer
	// urls and endpoints address servers and members that are separate processes. nats and
	// server are nil then.
	urls, endpoints []string
	routes          *Routes

	stream     StreamOptions
	ackTimeout time.Duration
	patience   time.Duration // StreamPatience of the relays; 0 means the default
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{server: etcdtest.Start(t), nats: startNATS(t), routes: NewRoutes(DefaultCluster, "/registry"), ackTimeout: time.Second}
	b.etcd = b.server.Dial(t)
	return b
}

// dial connects to etcd.
func (b *bench) dial(t testing.TB) *clientv3.Client {
	t.Helper()
	if len(b.endpoints) == 0 {
		return b.server.Dial(t)
	}
	c, err := dialEtcd(b.endpoints)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// relay returns a relay; change may alter it.
func (b *bench) relay(t testing.TB, name string, change func(*Relay)) *Relay {
	t.Helper()
	return b.relayBy(t, name, b.server.Dial(t), b.connectNATS(t), change)
}

// relayBy returns a relay with its own connections.
func (b *bench) relayBy(t testing.TB, name string, etcd *clientv3.Client, conn *nats.Conn, change func(*Relay)) *Relay {
	t.Helper()
	r, err := NewRelay(RelayConfig{
		Etcd: etcd, Conn: conn, Routes: b.routes, Tiers: Tiers, Identity: name, Stream: b.stream,
		LeaseTTL: time.Second, ProgressInterval: 100 * time.Millisecond, AckTimeout: b.ackTimeout,
		StreamPatience: b.patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	return r
}

func (b *bench) runRelay(t testing.TB, name string, change func(*Relay)) (stop func()) {
	t.Helper()
	return background(t, b.relay(t, name, change).Run)
}

// read runs a reader of core with a recorder as its sink.
func (b *bench) read(t testing.TB, change func(*Reader)) (*Reader, *recorder) {
	t.Helper()
	return b.readBy(t, b.connectNATS(t), change)
}

func (b *bench) readBy(t testing.TB, conn *nats.Conn, change func(*Reader)) (*Reader, *recorder) {
	t.Helper()
	r, err := NewReader(ReaderConfig{
		Etcd: b.dial(t), Conn: conn, Routes: b.routes, Tier: Core, Patience: 500 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	sink := newRecorder()
	background(t, func(ctx context.Context) error { return r.Run(ctx, sink) })
	sink.wait(t, "first reset", func() bool { return len(sink.resets) > 0 })
	return r, sink
}

// put writes one key below /registry/ and returns the revision.
func (b *bench) put(t testing.TB, key, value string) int64 {
	t.Helper()
	resp, err := b.etcd.Put(t.Context(), "/registry/"+key, value)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// waitSource waits until a reader uses a source.
func waitSource(t testing.TB, r *Reader, sink *recorder, want Source) {
	t.Helper()
	// The status changes with the feed, and progress moves the feed.
	deadline := time.Now().Add(hang)
	for r.Status().Source != want {
		if time.Now().After(deadline) {
			t.Fatalf("source is not %s in %s: %+v", want, hang, r.Status())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRelayFeedsReader(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	w := newWitness(t, b.etcd, b.routes)
	// A busy machine is no stall.
	r, sink := b.read(t, func(r *Reader) { r.cfg.Patience = hang })
	waitSource(t, r, sink, SourceStream)
	for i := range 200 {
		b.put(t, fmt.Sprintf("pods/ns/p%d", i%20), fmt.Sprint("v", i))
		b.put(t, fmt.Sprintf("example.com/things/ns/p%d", i%20), fmt.Sprint("v", i))
		if i%10 == 0 {
			if _, err := b.etcd.Delete(t.Context(), "/registry/pods/ns/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := b.put(t, "services/specs/ns/last", "x")
	sink.until(t, last)
	w.verify(t, sink, b.routes, Core, last)
	if s := r.Status(); s.Source != SourceStream || s.Gaps+s.Stalls+s.Refused+s.Resets != 0 {
		t.Errorf("status %+v", s)
	}
	// Revisions of other tiers arrive as progress.
	other := b.put(t, "example.com/things/ns/other", "x")
	if err := r.RequestProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink.until(t, other)
}

// A reader that starts after the death of the relay finds a complete stream that nobody
// continues.
func TestReaderDoesNotTrustAStreamOfADeadRelay(t *testing.T) {
	b := newBench(t)
	conn := b.connectNATS(t)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	tellEverything := func() bool {
		now, err := currentPosition(t.Context(), b.etcd, "x")
		if err != nil {
			return false
		}
		for _, tier := range Tiers {
			stream, err := js.Stream(t.Context(), b.routes.Stream(tier))
			if err != nil {
				return false
			}
			if end, err := readTail(t.Context(), stream); err != nil || end.last == nil || end.last.ID.Revision < now.revision {
				return false
			}
		}
		return true
	}
	// Whether a relay dies before its next write to etcd is chance.
	for dead := 1; ; dead++ {
		stop := b.runRelay(t, fmt.Sprint("dead ", dead), func(r *Relay) { r.hooks.killed = true })
		b.put(t, "pods/ns/p", "told")
		eventually(t, "the streams tell everything", tellEverything)
		stop()
		if tellEverything() {
			break
		}
		if dead == 5 {
			t.Fatal("no relay died when its streams told everything")
		}
	}
	requests, err := conn.SubscribeSync(b.routes.Stream(Core) + progressRequestSubject)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}

	r, sink := b.read(t, func(r *Reader) { r.cfg.Patience = time.Hour })
	if _, err := requests.NextMsg(hang); err != nil {
		t.Fatalf("the reader does not ask whether somebody goes on: %v", err)
	}
	sink.until(t, b.put(t, "pods/ns/p", "not told"))
	if s := r.Status(); s.Source != SourceEtcd {
		t.Errorf("status %+v", s)
	}
	b.runRelay(t, "next", nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/p", "told again"))
	if s := r.Status(); s.Source != SourceStream || s.Gaps+s.Stalls+s.Refused+s.Resets != 0 {
		t.Errorf("status %+v", s)
	}
}

// A process without access to NATS must not stay elected, because the other candidates would
// wait for it. Here it is elected before it loses NATS, and campaigns again before the others.
func TestRelayWithoutNATSGivesWay(t *testing.T) {
	b := newBench(t)
	elsewhere := startNATS(t)
	conn := elsewhere.connect(t)
	elsewhere.Shutdown()
	elsewhere.WaitForShutdown()
	eventually(t, "the connection is lost", func() bool { return !conn.IsConnected() })
	background(t, b.relayBy(t, "without", b.server.Dial(t), conn, nil).Run)

	cut := newProxy(t, b.nats.Addr().String())
	through, err := nats.Connect("nats://"+cut.addr(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.PingInterval(100*time.Millisecond), nats.MaxPingsOutstanding(2), nats.Timeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	first := b.relayBy(t, "cut off", b.server.Dial(t), through, nil)
	background(t, first.Run)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)

	b.runRelay(t, "other", nil)
	cut.freeze()
	t.Cleanup(cut.thaw)
	eventually(t, "another relay publishes", func() bool {
		revision := b.put(t, "pods/ns/p", "v")
		return r.Status().Source == SourceStream && sink.reaches(revision, time.Second) && r.Status().Source == SourceStream &&
			!through.IsConnected()
	})
	waitSource(t, r, sink, SourceStream)
}

// A stream discards its oldest messages. The relay renews the fence of a pipeline before the
// stream discards it.
func TestTheFenceIsRenewed(t *testing.T) {
	b := newBench(t)
	b.stream.MaxBytes = 512 << 10
	b.ackTimeout = hang
	w := newWitness(t, b.etcd, b.routes)
	// Nothing may time out on a busy machine.
	relay := b.relay(t, "a", func(r *Relay) { r.cfg.LeaseTTL = hang })
	background(t, relay.Run)
	r, sink := b.read(t, func(r *Reader) { r.cfg.Patience = hang })
	waitSource(t, r, sink, SourceStream)
	before := b.messages(t)
	for i := range 500 {
		b.put(t, fmt.Sprintf("configmaps/ns/c%d", i%5), fmt.Sprintf("%4000d", i))
	}
	last := b.put(t, "pods/ns/last", "x")
	sink.until(t, last)
	w.verify(t, sink, b.routes, Core, last)
	info, err := b.coreStream(t).Info(t.Context())
	if err != nil || info.State.FirstSeq <= before {
		t.Fatalf("the stream has discarded nothing of what there was before: %+v, %v", info, err)
	}
	if failures := testutil.ToFloat64(relay.metrics.failures.WithLabelValues(string(Core))); failures != 0 {
		t.Errorf("publishing failed %v times", failures)
	}
	if s := r.Status(); s.Source != SourceStream || s.Gaps+s.Stalls+s.Resets != 0 {
		t.Errorf("status %+v", s)
	}
}
