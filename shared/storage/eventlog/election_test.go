package eventlog

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"triune.dev/shared/testing/etcdtest"
)

// noWatches fails the test if a client watches.
type noWatches struct {
	clientv3.Watcher
	t *testing.T
}

func (w *noWatches) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.t.Errorf("watch of %s", key)
	return w.Watcher.Watch(ctx, key, opts...)
}

// candidate returns a candidate with its own session that must not watch anything.
func candidate(t *testing.T, server *etcdtest.Server, name string) *election {
	t.Helper()
	etcd := server.Dial(t)
	etcd.Watcher = &noWatches{t: t, Watcher: etcd.Watcher}
	session, err := concurrency.NewSession(etcd, concurrency.WithTTL(1))
	if err != nil {
		t.Fatal(err)
	}
	return &election{etcd: etcd, key: "/test/relay", identity: name, session: session}
}

// campaigning runs a campaign until the test ends.
func campaigning(t *testing.T, e *election) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- e.campaign(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return ended
}

// One candidate is elected at a time, however its predecessor ended. Only the elected one gets
// an epoch, which is higher than all earlier ones.
func TestOneCandidateIsElectedAtATime(t *testing.T) {
	server := etcdtest.Start(t)
	etcd := server.Dial(t)
	whole, elected, epoch := t, candidate(t, server, "first"), uint64(0)
	if err := elected.campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		end  func(*testing.T, *election)
	}{
		{"gives its lease back", func(t *testing.T, e *election) {
			e.session.Orphan()
			if _, err := etcd.Revoke(t.Context(), e.session.Lease()); err != nil {
				t.Fatal(err)
			}
		}},
		{"dies", func(_ *testing.T, e *election) { e.session.Orphan() }},
		{"is removed by somebody", func(t *testing.T, e *election) {
			if _, err := etcd.Delete(t.Context(), e.key); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			next := candidate(whole, server, "next after one that "+test.name)
			if took, err := next.tryAcquire(t.Context()); took || err != nil {
				t.Fatalf("beside an elected one: elected %t, %v", took, err)
			}
			if _, err := epochOf(t, next); !errors.Is(err, errDeposed) {
				t.Errorf("epoch of one who is not elected: %v, want %v", err, errDeposed)
			}
			now, err := epochOf(t, elected)
			if err != nil || now <= epoch {
				t.Errorf("epoch %d after %d, %v", now, epoch, err)
			}
			epoch = now
			ended := campaigning(t, next)
			test.end(t, elected)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if _, err := epochOf(t, elected); !errors.Is(err, errDeposed) {
				t.Errorf("epoch of the former one: %v, want %v", err, errDeposed)
			}
			elected = next
		})
	}
}

func epochOf(t *testing.T, e *election) (uint64, error) {
	t.Helper()
	r := &Relay{cfg: RelayConfig{Etcd: e.etcd, StatePrefix: "/test/", Identity: e.identity}}
	return r.epoch(t.Context(), e)
}

// A candidate whose lease expires stops campaigning: a key it took would have no owner.
func TestCampaignEndsWithTheSession(t *testing.T) {
	server := etcdtest.Start(t)
	elected, waiting := candidate(t, server, "elected"), candidate(t, server, "waiting")
	if err := elected.campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := campaigning(t, waiting)
	if _, err := server.Dial(t).Revoke(t.Context(), waiting.session.Lease()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, errSessionOver) {
		t.Errorf("ended with %v, want %v", err, errSessionOver)
	}
}
