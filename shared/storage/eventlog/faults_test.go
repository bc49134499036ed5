package eventlog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
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
