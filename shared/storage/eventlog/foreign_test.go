package eventlog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/kv"
	"triune.dev/shared/testing/etcdtest"
)

var withPrefix = clientv3.WithPrefix()

// Messages that no relay published are refused and counted, and etcd closes the gap.
func TestForeignMessagesAreRefused(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	w := newWitness(t, b.etcd, b.routes)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/a", "1"))
	js, err := jetstream.New(b.nats.connect(t))
	if err != nil {
		t.Fatal(err)
	}
	forged := messages["creation"]
	forged.Event.Key = "/registry/pods/ns/forged"
	for i, data := range [][]byte{nil, []byte("nonsense"), appendMessage(nil, &forged)} {
		// After each of them the relay reopens the stream, and etcd may be the source.
		waitSource(t, r, sink, SourceStream)
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: b.routes.Route("/registry/pods/x").Subject, Data: data})
		if err != nil {
			t.Fatal(err)
		}
		sink.until(t, b.put(t, "pods/ns/a", fmt.Sprint("after foreign message ", i)))
	}
	last := b.put(t, "pods/ns/last", "x")
	sink.until(t, last)
	w.verify(t, sink, b.routes, Core, last)
	waitSource(t, r, sink, SourceStream)
	if s := r.Status(); s.Refused < 2 {
		t.Errorf("%d refused messages, want at least those that say nothing: %+v", s.Refused, s)
	}
}

// NATS is down for a while and writes continue.
func TestReadersSurviveAnOutageOfNATS(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	w := newWitness(t, b.etcd, b.routes)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	for round := range 2 {
		b.nats.restart(t, func(string) {
			for i := range 50 {
				sink.until(t, b.put(t, fmt.Sprintf("pods/ns/p%d", i%9), fmt.Sprint(round, i)))
			}
			if s := r.Status(); s.Source != SourceEtcd {
				t.Errorf("without NATS: %+v", s)
			}
		})
		waitSource(t, r, sink, SourceStream)
		last := b.put(t, "pods/ns/last", "x")
		sink.until(t, last)
		w.verify(t, sink, b.routes, Core, last)
	}
}

// A lost consumer that is replaced at the end of the stream has skipped the messages in flight.
// The reader must not assume that the sink has them.
func TestANewConsumerDoesNotContinueTheOldOne(t *testing.T) {
	b := newBench(t)
	r, err := NewReader(ReaderConfig{Etcd: b.etcd, Conn: b.connectNATS(t), Routes: b.routes, Tier: Core})
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecorder()
	f := &readLoop{
		Reader: r, ctx: t.Context(), sink: sink, etcd: kv.New(b.etcd),
		subscription: newSubscription(r.js, r.stream, pullMaxMessages), retry: time.NewTimer(time.Hour), probed: make(chan probeResult, 1),
	}
	defer f.close()
	if !f.start() {
		t.Fatal("etcd is not there")
	}
	f.switchToStream()
	f.checker = f.hooks.newChecker()
	passed := b.put(t, "pods/ns/a", "1")
	f.onStream(delivery{restarted: true})
	if !f.useEtcd {
		t.Fatalf("the stream is still the source, at revision %d; %d was never delivered", f.revision, passed)
	}
	for f.revision < passed {
		f.onEtcd(<-f.watch.C())
	}
}

// If nobody publishes, readers ask etcd after a while, and watch it if it is ahead.
func TestSilenceSendsReadersToEtcd(t *testing.T) {
	b := newBench(t)
	stop := b.runRelay(t, "a", nil)
	w := newWitness(t, b.etcd, b.routes)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/a", "1"))
	stop()
	last := b.put(t, "pods/ns/a", "2")
	sink.until(t, last)
	if s := r.Status(); s.Source != SourceEtcd || s.Stalls != 1 || s.Gaps != 0 {
		t.Errorf("without a relay: %+v", s)
	}
	b.runRelay(t, "b", nil)
	waitSource(t, r, sink, SourceStream)
	last = b.put(t, "pods/ns/a", "3")
	sink.until(t, last)
	w.verify(t, sink, b.routes, Core, last)
}

// Without NATS a reader is one watch of etcd, for one tier or for all.
func TestReadersWorkWithoutNATS(t *testing.T) {
	b := &bench{server: etcdtest.Start(t), routes: NewRoutes(DefaultCluster, "/registry")}
	b.etcd = b.server.Dial(t)
	w := newWitness(t, b.etcd, b.routes)
	for _, tier := range []Tier{"", Core, Extensions} {
		r, err := NewReader(ReaderConfig{Etcd: b.server.Dial(t), Routes: b.routes, Tier: tier, Patience: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		sink := newRecorder()
		background(t, func(ctx context.Context) error { return r.Run(ctx, sink) })
		sink.wait(t, "first reset", func() bool { return len(sink.resets) > 0 })
		first := b.put(t, "pods/ns/a", "1")
		b.put(t, "example.com/things/a", "1")
		last := b.put(t, "pods/ns/a", "2")
		sink.until(t, last)
		w.verify(t, sink, b.routes, tier, last)
		// Progress arrives on request even if etcd's revision has not changed.
		sink.mu.Lock()
		before := sink.progress
		sink.mu.Unlock()
		if err := r.RequestProgress(t.Context()); err != nil {
			t.Fatal(err)
		}
		sink.wait(t, "progress", func() bool { return sink.progress > before })
		got, err := since(t, r, "/registry/", first-1, last)
		want := 3
		switch tier {
		case Core:
			want = 2
		case Extensions:
			want = 1
		}
		if err != nil || len(got) != want {
			t.Errorf("history of %q: %v, %v, want %d", tier, got, err, want)
		}
	}
}

func TestMaxPayloadIsChecked(t *testing.T) {
	s := &natsServer{}
	s.opts.Host, s.opts.Port, s.opts.JetStream, s.opts.StoreDir, s.opts.NoSigs, s.opts.NoLog = "127.0.0.1", -1, true, t.TempDir(), true, true
	s.run(t)
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if err := CheckMaxPayload(s.connect(t), DefaultRequestLimit); err == nil {
		t.Error("NATS with messages of 1 MiB is taken")
	}
	if err := CheckMaxPayload(s.connect(t), 256<<10); err != nil {
		t.Error(err)
	}
}

// etcd accepts larger requests than the relay was configured for. Readers get that revision
// from etcd.
func TestAnEventTooLargeForNATSComesFromEtcd(t *testing.T) {
	b := newBench(t)
	b.nats.Shutdown()
	b.nats.opts.MaxPayload = 1 << 20
	b.nats.run(t)
	relay, err := NewRelay(RelayConfig{
		Etcd: b.server.Dial(t), Conn: b.nats.connect(t), Routes: b.routes, Tiers: Tiers, Identity: "a",
		RequestLimit: 256 << 10, ProgressInterval: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	background(t, relay.Run)
	w := newWitness(t, b.etcd, b.routes)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	b.put(t, "pods/ns/a", "1")
	b.put(t, "pods/ns/big", string(make([]byte, 1200<<10)))
	b.put(t, "pods/ns/a", "2")
	last := b.put(t, "pods/ns/a", "3")
	sink.until(t, last)
	waitSource(t, r, sink, SourceStream)
	last = b.put(t, "pods/ns/a", "4")
	sink.until(t, last)
	w.verify(t, sink, b.routes, Core, last)
}
