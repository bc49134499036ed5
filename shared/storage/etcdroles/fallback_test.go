package etcdroles

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
)

// hang bounds the waits of the tests.
const hang = 3 * time.Minute

// sink records the events of a reader.
type sink struct {
	mu      sync.Mutex
	events  map[string]string // values, or "gone", by revision and key; guarded by mu
	resets  int               // guarded by mu
	reached int64             // guarded by mu
}

func (s *sink) Apply(b kv.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range b.Events {
		value := string(e.Value)
		if e.Kind == kv.Deleted {
			value = "gone"
		}
		s.events[fmt.Sprint(e.Revision, " ", e.Key)] = value
	}
	s.reached = b.Revision
}

func (s *sink) Reset(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resets++
	s.reached = revision
}

func (s *sink) at() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reached
}

// TestFallback checks that with roles, a reader that watches etcd itself has the
// permissions it needs and gets the changes of its own tier, and only core gets Secrets.
// The same holds after a compaction and after a restart.
func TestFallback(t *testing.T) {
	server, root := secured(t)
	sinks := map[eventlog.Tier]*sink{}
	for _, tier := range eventlog.Tiers {
		r, err := eventlog.NewReader(eventlog.ReaderConfig{
			Etcd: server.DialAs(t, User(routes, tier)), Routes: routes, Tier: tier, StatePrefix: routes.StatePrefix(), Patience: 500 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		s := &sink{events: map[string]string{}}
		sinks[tier] = s
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, s) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	until := func(revision int64) {
		t.Helper()
		deadline := time.Now().Add(hang)
		for tier, s := range sinks {
			for s.at() < revision {
				if time.Now().After(deadline) {
					t.Fatalf("%s is at revision %d, want %d", tier, s.at(), revision)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	// Every sink must have started before the first change that it should get.
	now, err := root.Get(t.Context(), "/registry/")
	if err != nil {
		t.Fatal(err)
	}
	until(now.Header.GetRevision())
	want := map[eventlog.Tier]map[string]string{}
	for _, tier := range eventlog.Tiers {
		want[tier] = map[string]string{}
	}
	write := func(etcd *clientv3.Client, value string) (last int64) {
		t.Helper()
		for prefix, owner := range prefixes() {
			var ops []clientv3.Op
			for _, key := range []string{prefix + "x", prefix + "y"} {
				ops = append(ops, clientv3.OpPut(key, value))
			}
			resp, err := etcd.Txn(t.Context()).Then(ops...).Commit()
			if err != nil {
				t.Fatal(err)
			}
			last = resp.Header.GetRevision()
			if owner != "" {
				want[owner][fmt.Sprint(last, " ", prefix, "x")] = value
				want[owner][fmt.Sprint(last, " ", prefix, "y")] = value
			}
		}
		return last
	}
	last := write(root, "1")
	until(last)
	if _, err := root.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	until(write(server.DialAs(t, Root), "2"))
	for tier, s := range sinks {
		s.mu.Lock()
		if diff := cmp.Diff(want[tier], s.events); diff != "" || s.resets != 1 {
			t.Errorf("%s: %d resets (-want +got):\n%s", tier, s.resets, diff)
		}
		s.mu.Unlock()
	}
}
