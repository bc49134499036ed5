package eventlog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// onServers runs a case with one NATS server, and with three servers and replicated streams.
func onServers(t *testing.T, run func(t *testing.T, b *bench)) {
	for name, start := range map[string]func(testing.TB) *bench{"one server": newBench, "three servers": newClusterBench} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			b.patience = 2 * time.Second
			run(t, b)
		})
	}
}

// level waits until every server has all messages of every stream.
func (b *bench) level(t *testing.T, within time.Duration) {
	t.Helper()
	js, err := jetstream.New(b.connectNATS(t))
	if err != nil {
		t.Fatal(err)
	}
	behind := func() (found []string) {
		for _, tier := range Tiers {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			stream, err := js.Stream(ctx, b.routes.Stream(tier))
			cancel()
			if err != nil {
				found = append(found, fmt.Sprintf("%s: %v", tier, err))
				continue
			}
			for _, peer := range stream.CachedInfo().Cluster.Replicas {
				if !peer.Current || peer.Offline {
					found = append(found, fmt.Sprintf("%s on %s: %+v", tier, peer.Name, *peer))
				}
			}
		}
		return found
	}
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		found := behind()
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not level in %s: %v", within, found)
		}
	}
}

// etcdThrough connects to etcd through a proxy.
func (b *bench) etcdThrough(t *testing.T) (*clientv3.Client, *proxy) {
	t.Helper()
	p := newProxy(t, strings.TrimPrefix(b.server.URL(), "http://"))
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + p.addr()}, Logger: nopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	return etcd, p
}

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

// Servers are restarted in turn under load. One of them comes back without its files after the
// others have compacted the log that it would need. Soon all are level again, and the streams
// are still the same.
func TestServersAreRestartedInTurn(t *testing.T) {
	b := newClusterBench(t)
	w := newWitness(t, b.etcd, b.routes)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	incarnation := b.incarnation(t)
	rounds, size := 1, 300<<10
	if !testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		for i, s := range b.cluster {
			writing, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			writers.Go(func() {
				large := strings.Repeat("x", size)
				for n := 0; writing.Err() == nil; n++ {
					b.put(t, fmt.Sprintf("pods/ns%d/p%d", round, n%50), fmt.Sprint(n))
					if n%10 == 0 {
						b.put(t, fmt.Sprintf("configmaps/ns/c%d", n%30), large)
						b.put(t, fmt.Sprintf("example.com/things/t%d", n%30), large)
					}
				}
			})
			s.Shutdown()
			s.WaitForShutdown()
			if i == 1 {
				if err := os.RemoveAll(filepath.Join(s.opts.StoreDir, "jetstream")); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second) // of load
			s.run(t)
			stop()
			writers.Wait()
			b.clusterReady(t)
			b.level(t, hang)
		}
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
		t.Fatal(wrong)
	}
	waitSource(t, r, sink, SourceStream)
	if b.incarnation(t) != incarnation {
		t.Error("the stream was recreated")
	}
	if wrong := b.checkStream(t); wrong != "" {
		t.Error(wrong)
	}
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
			t.Error("the successor's stream was recreated")
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

// coreStatus returns the relay's status of core's stream.
func coreStatus(r *Relay) StreamStatus {
	for _, s := range r.Status().Streams {
		if s.Tier == Core {
			return s
		}
	}
	return StreamStatus{}
}

func (b *bench) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(b.connectNATS(t))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// etcd is restored from a backup that is newer than the last event of a tier, and has as many
// revisions as before when the relay looks.
func TestEtcdIsRestoredUnderAQuietTier(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/quiet", "x"))
	backup := t.TempDir()
	b.server.Stop()
	if err := os.CopyFS(backup, os.DirFS(b.server.Dir())); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	waitSource(t, r, sink, SourceStream)
	// The revisions that the backup lacks belong to other tiers.
	for i := range 40 {
		key := fmt.Sprintf("/elsewhere/%d", i)
		if _, err := b.etcd.Put(t.Context(), key, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	now, err := currentPosition(t.Context(), b.etcd, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RequestProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink.until(t, now.revision)
	b.server.Stop()
	if err := os.RemoveAll(b.server.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(b.server.Dir(), os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	var last int64
	for i := range 100 {
		last = b.put(t, fmt.Sprintf("pods/ns/once%02d", i), "restored")
	}
	if last <= now.revision {
		t.Fatalf("revision %d does not pass %d", last, now.revision)
	}
	sink.wait(t, "a reset", func() bool { return len(sink.resets) > 1 })
	eventually(t, "the stream is the source again", func() bool {
		last = b.put(t, "pods/ns/again", "restored")
		return r.Status().Source == SourceStream
	})
	sink.until(t, last)
}

// A reader is ahead of the stream when it loses etcd. etcd is restored from a backup that has
// the whole stream, so the stream continues and passes the reader's revision. The reader must
// not take it for the history that it has seen.
func TestEtcdIsRestoredUnderAReaderThatIsCutOff(t *testing.T) {
	b := newBench(t)
	stop := b.runRelay(t, "before", nil)
	etcd, toEtcd := b.etcdThrough(t)
	r, err := NewReader(ReaderConfig{Etcd: etcd, Conn: b.connectNATS(t), Routes: b.routes, Tier: Core, Patience: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecorder()
	background(t, func(ctx context.Context) error { return r.Run(ctx, sink) })
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	stop()
	backup := t.TempDir()
	b.server.Stop()
	if err := os.CopyFS(backup, os.DirFS(b.server.Dir())); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	var gone int64
	for i := range 40 {
		gone = b.put(t, fmt.Sprintf("pods/ns/p%d", i), "gone")
	}
	sink.until(t, gone)

	toEtcd.cut()
	b.server.Stop()
	removeAll(t, b.server.Dir())
	if err := os.CopyFS(b.server.Dir(), os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	b.runRelay(t, "after", nil)
	eventually(t, "the stream passes what the reader knows", func() bool {
		b.put(t, "pods/ns/p", "restored")
		end, err := readTail(t.Context(), b.coreStream(t))
		return err == nil && end.last != nil && end.last.ID.Revision > gone+10
	})
	toEtcd.mend()
	sink.wait(t, "a reset", func() bool { return len(sink.resets) > 1 })
	eventually(t, "the stream is the source again", func() bool {
		last := b.put(t, "pods/ns/again", "restored")
		return sink.reaches(last, time.Second) && r.Status().Source == SourceStream
	})
}

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
	eventually(t, "the stream is recreated", func() bool {
		b.put(t, "pods/ns/meanwhile", "y")
		b.put(t, "example.com/things/a", "y")
		return coreStatus(relay).Usable
	})
	t.Logf("recreated %s after it was noticed", time.Since(start))
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

// NATS cannot carry the log: the relay reports why, and readers get their events from etcd.
func TestReadersUseEtcdIfNATSCannotCarryTheLog(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*server.Options)
		stream StreamOptions
		want   string
	}{
		{"no JetStream", func(o *server.Options) { o.JetStream = false }, StreamOptions{}, "JetStream"},
		{"an account without JetStream", func(o *server.Options) {
			account := server.NewAccount("without")
			o.Accounts = []*server.Account{account}
			o.Users = []*server.User{{Username: "u", Password: "p", Account: account}}
			o.NoAuthUser = "u"
		}, StreamOptions{}, "JetStream"},
		{"too little storage", func(o *server.Options) { o.JetStreamMaxStore = 1 << 20 }, StreamOptions{}, "storage"},
		{"max_payload too small", func(o *server.Options) { o.MaxPayload = 1 << 20 }, StreamOptions{}, "max_payload"},
		{"replicas without a cluster", func(*server.Options) {}, StreamOptions{Replicas: 3}, "replicas"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.nats.Shutdown()
			b.nats.WaitForShutdown()
			tc.change(&b.nats.opts)
			b.nats.run(t)
			b.stream, b.patience = tc.stream, time.Second
			w := newWitness(t, b.etcd, b.routes)
			relay := b.relay(t, "a", nil)
			background(t, relay.Run)
			_, sink := b.read(t, nil)
			eventually(t, "the relay says why", func() bool {
				s := relay.Status()
				problems := []string{s.Problem}
				for _, stream := range s.Streams {
					problems = append(problems, stream.Problem)
				}
				return strings.Contains(strings.Join(problems, "\n"), tc.want)
			})
			last := b.put(t, "pods/ns/last", "x")
			if wrong := b.outcome(t, w, sink, asItIs, last); wrong != "" {
				t.Fatal(wrong)
			}
		})
	}
}
