package eventlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A relay is paused for longer than its lease, about to publish a progress message, and
// publishes it once its successor is active. The message is refused and nothing else happens:
// the stream stays healthy on every server.
func TestAPausedRelayPublishesProgress(t *testing.T) {
	onServers(t, func(t *testing.T, b *bench) {
		w := newWitness(t, b.etcd, b.routes)
		etcd, toEtcd := b.etcdThrough(t)
		var pause atomic.Bool
		paused, goOn := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(goOn) })
		background(t, b.relayBy(t, "paused", etcd, b.connectNATS(t), func(r *Relay) {
			r.hooks.publish = func(m *message) {
				if m.Type == typeProgress && pause.CompareAndSwap(true, false) {
					close(paused)
					<-goOn
				}
			}
		}).Run)
		t.Cleanup(release)
		r, sink := b.read(t, nil)
		waitSource(t, r, sink, SourceStream)
		sink.until(t, b.put(t, "pods/ns/before", "x"))
		pause.Store(true)
		<-paused
		toEtcd.freeze()
		b.runRelay(t, "successor", nil)
		eventually(t, "the successor publishes", func() bool {
			return sink.reaches(b.put(t, "pods/ns/meanwhile", "x"), time.Second) && r.Status().Source == SourceStream
		})
		release()
		toEtcd.thaw()
		for i := range 50 {
			b.put(t, fmt.Sprintf("pods/ns/p%d", i), "x")
		}
		last := b.put(t, "pods/ns/last", "x")
		if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
			t.Fatal(wrong)
		}
		waitSource(t, r, sink, SourceStream)
		if b.cluster != nil {
			b.level(t, hang)
		}
		if wrong := b.checkStream(t); wrong != "" {
			t.Error(wrong)
		}
	})
}

// A relay stalls when it is elected and has not opened its streams yet. When it resumes, a
// successor has long been active: it touches nothing.
func TestAStalledRelayResumesBeforeItOpensItsStreams(t *testing.T) {
	onServers(t, func(t *testing.T, b *bench) {
		w := newWitness(t, b.etcd, b.routes)
		etcd, toEtcd := b.etcdThrough(t)
		stalled, goOn := make(chan struct{}, len(Tiers)), make(chan struct{})
		release := sync.OnceFunc(func() { close(goOn) })
		first := b.relayBy(t, "stalled", etcd, b.connectNATS(t), func(r *Relay) {
			r.cfg.LeaseTTL = time.Minute // so that it does not find out by its lease
			r.hooks.open = func(context.Context) {
				select {
				case stalled <- struct{}{}:
				default:
				}
				<-goOn
			}
		})
		background(t, first.Run)
		t.Cleanup(release)
		for range Tiers {
			<-stalled
		}
		toEtcd.freeze()
		elected, err := b.etcd.Get(t.Context(), first.cfg.StatePrefix+"relay")
		if err != nil || len(elected.Kvs) != 1 {
			t.Fatalf("who is elected: %v, %v", elected, err)
		}
		if _, err := b.etcd.Revoke(t.Context(), clientv3.LeaseID(elected.Kvs[0].Lease)); err != nil {
			t.Fatal(err)
		}
		b.runRelay(t, "successor", nil)
		r, sink := b.read(t, nil)
		waitSource(t, r, sink, SourceStream)
		early := b.put(t, "pods/ns/early", "x")
		sink.until(t, b.put(t, "pods/ns/before", "x"))
		incarnation := b.incarnation(t)
		toEtcd.thaw()
		release()
		// It finds out by its transaction, or by the first reply to the renewal of its lease,
		// if that was in flight when it stalled.
		eventually(t, "the stalled relay finds out", func() bool { return !first.Status().Elected })
		last := b.put(t, "pods/ns/last", "x")
		if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
			t.Fatal(wrong)
		}
		if b.incarnation(t) != incarnation {
			t.Error("the successor's stream was replaced")
		}
		if got, err := since(t, r, "/registry/pods/", early-1, last); err != nil || len(got) != 3 {
			t.Errorf("history %v, %v", got, err)
		}
		if wrong := b.checkStream(t); wrong != "" {
			t.Error(wrong)
		}
	})
}

// A relay that has confirmed its election stalls before it deletes a stream. It confirms it
// again.
func TestARelayStallsBeforeItDeletesAStream(t *testing.T) {
	b := newBench(t)
	js := b.jetStream(t)
	config := b.stream.config(b.routes.Stream(Core))
	config.Storage = jetstream.MemoryStorage // an update cannot change the storage
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	var stalls atomic.Int64
	relay := b.relay(t, "a", func(r *Relay) {
		r.hooks.guarded = func() {
			if stalls.Add(1) == 1 {
				time.Sleep(r.cfg.LeaseTTL)
				if info, err := js.Stream(context.Background(), config.Name); err != nil || info.CachedInfo().Config.Storage != jetstream.MemoryStorage {
					t.Errorf("the stream is gone before it was deleted: %v", err)
				}
			}
		}
	})
	background(t, relay.Run)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	if stalls.Load() < 2 {
		t.Error("it deleted the stream after it had stalled")
	}
}
