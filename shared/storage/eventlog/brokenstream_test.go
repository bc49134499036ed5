package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS gives up one stream, as it does if it refuses a message after the replicas agreed on it.
// The relay recreates the stream. Its readers notice no more than a gap that etcd fills, and
// the other streams continue.
func TestAStreamWithoutALeaderIsRecreated(t *testing.T) {
	b := newClusterBench(t)
	b.patience = 10 * time.Second
	w := newWitness(t, b.etcd, b.routes)
	relay := b.relay(t, "a", nil)
	background(t, relay.Run)
	r, sink := b.read(t, nil)
	other, err := NewReader(ReaderConfig{Etcd: b.server.Dial(t), Conn: b.connectNATS(t), Routes: b.routes, Tier: Extensions, Patience: hang})
	if err != nil {
		t.Fatal(err)
	}
	otherSink := newRecorder()
	background(t, func(ctx context.Context) error { return other.Run(ctx, otherSink) })
	waitSource(t, r, sink, SourceStream)
	waitSource(t, other, otherSink, SourceStream)
	otherSince := other.Status().Since
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	incarnation := b.incarnation(t)

	conn := b.connectNATS(t)
	for range 3 {
		refused := nats.NewMsg(b.routes.Route("/registry/pods/x").Subject)
		refused.Header.Set(jetstream.ExpectedLastMsgIDHeader, "none")
		if err := conn.PublishMsg(refused); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the relay notices", func() bool {
		b.put(t, "pods/ns/meanwhile", "x")
		b.put(t, "example.com/things/a", "x")
		return coreStatus(relay).Problem != ""
	})
	// Another stream continues meanwhile. Its reader is too patient to fall back to etcd.
	otherSink.until(t, b.put(t, "example.com/things/a", "meanwhile"))
	if coreStatus(relay).Usable {
		t.Error("the other tier has waited for this one")
	}
	start := time.Now()
	eventually(t, "the stream is replaced", func() bool {
		b.put(t, "pods/ns/meanwhile", "y")
		b.put(t, "example.com/things/a", "y")
		return coreStatus(relay).Usable
	})
	t.Logf("replaced %s after it was noticed", time.Since(start))
	waitSource(t, r, sink, SourceStream)
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
		t.Fatal(wrong)
	}
	if b.incarnation(t) == incarnation {
		t.Error("the incarnation is the old one")
	}
	otherSink.until(t, b.put(t, "example.com/things/last", "x"))
	if s := other.Status(); s.Source != SourceStream || !s.Since.Equal(otherSince) {
		t.Errorf("the other tier's reader: %+v", s)
	}
	b.level(t, hang)
}

// Whatever an operator does to a stream, its readers miss nothing, their watches continue, and
// they soon return to the stream.
func TestASealedOrReplacedStreamIsRecreated(t *testing.T) {
	for name, meddle := range map[string]func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream){
		"purged": func(t *testing.T, _ jetstream.JetStream, stream jetstream.Stream) {
			if err := stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream) {
			if err := js.DeleteStream(t.Context(), stream.CachedInfo().Config.Name); err != nil {
				t.Fatal(err)
			}
		},
		"sealed": func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream) {
			config := stream.CachedInfo().Config
			config.Sealed = true
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
		},
		"filled by hand": func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream) {
			for i := range 5 {
				if _, err := js.Publish(t.Context(), stream.CachedInfo().Config.Name+eventSubject+"pods", []byte(fmt.Sprint("by hand ", i))); err != nil {
					t.Fatal(err)
				}
			}
		},
		"configured otherwise": func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream) {
			config := stream.CachedInfo().Config
			config.MaxMsgSize, config.AllowRollup, config.AllowAtomicPublish = 128, false, false
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
		},
		"replaced by another one": func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream) {
			config := stream.CachedInfo().Config
			if err := js.DeleteStream(t.Context(), config.Name); err != nil {
				t.Fatal(err)
			}
			config.Storage, config.Retention = jetstream.MemoryStorage, jetstream.WorkQueuePolicy
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.patience = 2 * time.Second
			w := newWitness(t, b.etcd, b.routes)
			b.runRelay(t, "a", nil)
			r, sink := b.read(t, nil)
			waitSource(t, r, sink, SourceStream)
			for i := range 20 {
				b.put(t, fmt.Sprintf("pods/ns/p%d", i), strings.Repeat("x", 200))
			}
			meddle(t, b.jetStream(t), b.coreStream(t))
			for i := range 20 {
				sink.until(t, b.put(t, fmt.Sprintf("pods/ns/p%d", i), strings.Repeat("y", 200)))
			}
			eventually(t, "the stream carries events again", func() bool {
				s := r.Status()
				revision := b.put(t, "pods/ns/again", "x")
				return s.Source == SourceStream && sink.reaches(revision, time.Second) && r.Status().Since.Equal(s.Since)
			})
			last := b.put(t, "pods/ns/last", "x")
			if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
				t.Fatal(wrong)
			}
			waitSource(t, r, sink, SourceStream)
		})
	}
}

// The last message of a stream is deleted while there is no relay. The next one does not take
// the stream for an empty one, which would break the chain.
func TestAStreamWithoutItsLastMessageIsRecreated(t *testing.T) {
	b := newBench(t)
	b.patience = time.Second
	w := newWitness(t, b.etcd, b.routes)
	stop := b.runRelay(t, "first", nil)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	stop()
	stream, incarnation := b.coreStream(t), b.incarnation(t)
	if err := stream.DeleteMsg(t.Context(), b.messages(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := readTail(t.Context(), stream); !errors.Is(err, errNoEnd) {
		t.Fatalf("the end of the stream: %v, want %v", err, errNoEnd)
	}
	second := b.relay(t, "second", nil)
	background(t, second.Run)
	eventually(t, "the stream is usable", func() bool { return coreStatus(second).Usable })
	b.endsIntact(t, w, r, sink)
	if b.incarnation(t) == incarnation {
		t.Error("the incarnation is the old one")
	}
}
