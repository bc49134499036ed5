package eventlog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A lease of a thousand keys expires at one revision. The relay is killed in the middle of
// publishing it.
func TestLeaseOfAThousandKeysExpiresWhileTheRelayIsKilled(t *testing.T) {
	hardCase(t, leaseExpires, dedupe)
}

func leaseExpires(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	ctx, kill := context.WithCancel(t.Context())
	dead := make(chan struct{})
	var deletions atomic.Int64
	first := b.relay(t, "first", func(r *Relay) {
		r.hooks.killed = true
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent && m.Event.Value == nil && deletions.Add(1) == 400 {
				kill()
				<-dead
			}
		}
	})
	var ended sync.WaitGroup
	ended.Go(func() { _ = first.Run(ctx) })
	t.Cleanup(func() { kill(); close(dead); ended.Wait() })
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	lease := b.many(t, 1000, 3600)
	if v.fails {
		// The naive reader must not fail for another reason.
		sink.until(t, b.put(t, "pods/ns/before", "x"))
	}
	if _, err := b.etcd.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	b.runRelay(t, "second", nil)
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	return b.checkStream(t)
}

// The acknowledgement of a stored message is lost.
func TestAnAckIsLostAfterTheAppend(t *testing.T) {
	hardCase(t, ackLost, dedupe, variant{name: "resending what was not acknowledged", relay: unfenced, fails: true})
}

func unfenced(r *Relay) {
	r.hooks.limits = &pipelined
	r.hooks.fence = func(*feed, *message) nats.Header { return nats.Header{} }
}

func ackLost(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	js, err := jetstream.New(b.connectNATS(t))
	if err != nil {
		t.Fatal(err)
	}
	var answers atomic.Int64
	var lost atomic.Pointer[message]
	resent := make(chan error, 1)
	b.runRelay(t, "a", func(r *Relay) {
		if v.relay != nil {
			v.relay(r)
		}
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent {
				copied := *m
				lost.CompareAndSwap(nil, &copied)
			}
		}
		r.hooks.acknowledge = func(*nats.Msg) bool {
			if answers.Add(1) != 60 {
				return false
			}
			if v.relay != nil {
				// A naive client retries.
				time.AfterFunc(200*time.Millisecond, func() {
					m := lost.Load()
					_, err := js.Publish(context.Background(), b.routes.Route(m.Event.Key).Subject, appendMessage(nil, m))
					resent <- err
				})
			}
			return true
		}
	})
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	b.many(t, 100, 3600)
	if _, err := b.etcd.Delete(t.Context(), "/registry/events/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if v.relay != nil {
		if err := <-resent; err != nil {
			t.Fatal(err)
		}
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	eventually(t, "an acknowledgement is lost", func() bool { return answers.Load() >= 60 })
	return b.checkStream(t)
}

// The relay is paused with messages in flight and loses its lease. A successor is elected and
// publishes, and then the messages arrive.
func TestAPausedRelayResumesAfterASuccessorWasElected(t *testing.T) {
	hardCase(t, pausedRelay, fenceBySeq, dedupe)
}

func pausedRelay(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	b.ackTimeout = 10 * time.Second
	toNATS, toEtcd := newProxy(t, b.nats.Addr().String()), newProxy(t, strings.TrimPrefix(b.server.URL(), "http://"))
	conn, err := nats.Connect("nats://"+toNATS.addr(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.IgnoreDiscoveredServers())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + toEtcd.addr()}, Logger: nopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	var sent atomic.Int64
	background(t, b.relayBy(t, "paused", etcd, conn, func(r *Relay) {
		if v.relay != nil {
			v.relay(r)
		}
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent {
				sent.Add(1)
			}
		}
	}).Run)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	before := sent.Load()

	toNATS.freeze()
	for i := range 50 {
		b.put(t, fmt.Sprintf("pods/ns/p%d", i), "x")
	}
	// A pipeline takes them all. Only one batch is in flight at a time, and it may be progress.
	underWay := int64(50)
	if b.stream.Replicas > 1 && v.relay == nil {
		underWay = 0
	}
	eventually(t, "the paused relay has sent what it can", func() bool { return sent.Load() >= before+underWay })
	toEtcd.freeze()
	// The successor is in the middle of the same events when the old messages arrive.
	halfway, goOn := make(chan struct{}), make(chan struct{})
	stored := b.messages(t)
	var published atomic.Int64
	b.runRelay(t, "successor", func(r *Relay) {
		if v.relay != nil {
			v.relay(r)
		}
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent && published.Add(1) == 20 {
				close(halfway)
				<-goOn
			}
		}
	})
	<-halfway
	if underWay > 0 {
		eventually(t, "half of the events are stored", func() bool { return b.messages(t) >= stored+19 })
	}
	toNATS.thaw()
	toEtcd.thaw()
	// They have arrived when the paused relay gets its replies and starts again.
	time.Sleep(300 * time.Millisecond)
	close(goOn)
	if _, err := b.etcd.Delete(t.Context(), "/registry/pods/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.checkStream(t); wrong != "" {
		return wrong
	}
	return b.outcome(t, w, sink, v, last)
}
