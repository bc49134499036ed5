package etcdstore

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	clocktesting "k8s.io/utils/clock/testing"

	"triune.dev/shared/testing/etcdtest"
	"triune.dev/shared/testing/polltest"
)

// TestCompactionProtocol lets two API servers on one etcd take turns by kube-apiserver's
// protocol: compact_rev_key, its version and its value.
func TestCompactionProtocol(t *testing.T) {
	etcd := etcdtest.Start(t).InProcess()
	write := func() int64 {
		resp, err := etcd.Put(t.Context(), "/registry/x", "y")
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	stored := func() (value string, version int64) {
		resp, err := etcd.Get(t.Context(), "compact_rev_key")
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) == 0 {
			return "", 0
		}
		return string(resp.Kvs[0].Value), resp.Kvs[0].Version
	}
	compactedTo := func(rev int64) bool {
		_, err := etcd.Get(t.Context(), "/registry/x", clientv3.WithRev(rev-1))
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			t.Fatal(err)
		}
		return err != nil
	}
	var a, b round
	turn := func(r *round, name string, wantCompacted int64) {
		t.Helper()
		next, compacted, err := try(t.Context(), etcd, *r)
		if err != nil || compacted != wantCompacted {
			t.Fatalf("%s: compacted %d, %v, want %d", name, compacted, err, wantCompacted)
		}
		*r = next
	}
	write()
	turn(&a, "a comes first and has no revision yet", 0)
	if value, version := stored(); value != "0" || version != 1 {
		t.Fatalf("after the first turn: value %q, version %d", value, version)
	}
	first := a.revision
	turn(&b, "b sees that a was first", 0)
	write()
	turn(&a, "a compacts to where it was one interval ago", first)
	if value, version := stored(); value != strconv.FormatInt(first, 10) || version != 2 || !compactedTo(first) {
		t.Fatalf("after a compaction: value %q, version %d", value, version)
	}
	turn(&b, "b learns of a's compaction", first)
	// a stops; b saw the key at b.version and takes over.
	write()
	second := b.revision
	turn(&b, "b takes over", second)
	if !compactedTo(second) {
		t.Error("b did not compact")
	}
	// a returns with its old state: it learns of the compaction, and compacts nothing.
	turn(&a, "a comes back", second)
	if a.version != b.version {
		t.Errorf("a is at version %d, b at %d", a.version, b.version)
	}
	// An invalid value teaches no compaction, and is overwritten.
	if _, err := etcd.Put(t.Context(), "compact_rev_key", "nonsense"); err != nil {
		t.Fatal(err)
	}
	turn(&a, "a meets nonsense", 0)
	third := a.revision
	write()
	turn(&a, "a goes on", third)
}

// TestCompactorRun checks that each of two Compactors learns of the other's compactions,
// that the history of one interval remains, and that neither watches etcd for it.
func TestCompactorRun(t *testing.T) {
	server := etcdtest.Start(t)
	etcd := server.InProcess()
	etcd.Watcher = &noWatches{t: t, Watcher: etcd.Watcher}
	clocks := []*clocktesting.FakeClock{clocktesting.NewFakeClock(time.Now()), clocktesting.NewFakeClock(time.Now())}
	ctx, cancel := context.WithCancel(t.Context())
	active, observer := NewCompactor(etcd, time.Minute), NewCompactor(etcd, 0)
	active.clock, observer.clock = clocks[0], clocks[1]
	ended := make(chan error, 2)
	for _, c := range []*Compactor{active, observer} {
		go func() { ended <- c.Run(ctx) }()
	}
	eventually(t, "the observer learns of a compaction", func() bool {
		if _, err := etcd.Put(t.Context(), "/registry/x", "y"); err != nil {
			t.Fatal(err)
		}
		if clocks[0].HasWaiters() {
			clocks[0].Step(time.Minute)
		}
		if clocks[1].HasWaiters() {
			clocks[1].Step(compactPollInterval)
		}
		return observer.CompactRevision() > 0 && active.CompactRevision() >= observer.CompactRevision()
	})
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// noWatches fails the test on any watch.
type noWatches struct {
	clientv3.Watcher
	t *testing.T
}

func (w *noWatches) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.t.Errorf("watch of %s", key)
	return w.Watcher.Watch(ctx, key, opts...)
}

// TestCompactorSurvivesEtcd checks that failed reads are repeated.
func TestCompactorSurvivesEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	etcd := server.Dial(t)
	observer := NewCompactor(etcd, 0)
	if _, err := etcd.Put(t.Context(), CompactKey, "7"); err != nil {
		t.Fatal(err)
	}
	if err := observer.poll(t.Context()); err != nil || observer.CompactRevision() != 7 {
		t.Fatalf("learned %d, %v, want 7", observer.CompactRevision(), err)
	}
	server.Stop()
	gone, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := observer.poll(gone); err == nil || observer.CompactRevision() != 7 {
		t.Errorf("without etcd: learned %d, %v, want 7 and an error", observer.CompactRevision(), err)
	}
	server.Restart(t)
	if _, err := etcd.Put(t.Context(), CompactKey, "nonsense"); err != nil {
		t.Fatal(err)
	}
	if err := observer.poll(t.Context()); err != nil || observer.CompactRevision() != 7 {
		t.Errorf("after nonsense: learned %d, %v, want 7", observer.CompactRevision(), err)
	}
	if _, err := etcd.Put(t.Context(), CompactKey, "9"); err != nil {
		t.Fatal(err)
	}
	if err := observer.poll(t.Context()); err != nil || observer.CompactRevision() != 9 {
		t.Errorf("after a restart: learned %d, %v, want 9", observer.CompactRevision(), err)
	}
}

// TestCompactRevision checks that the revision of a Store follows its source and never
// decreases.
func TestCompactRevision(t *testing.T) {
	c := NewCompactor(nil, 0)
	s := &Store{compaction: c}
	c.learn(7)
	c.learn(3)
	if s.CompactRevision() != 7 || (&Store{}).CompactRevision() != 0 {
		t.Errorf("compact revision %d, want 7; without a source %d, want 0", s.CompactRevision(), (&Store{}).CompactRevision())
	}
}

// eventually waits until holds returns true.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	polltest.Until(t, patience, what, holds)
}

// TestCompactorWithoutPermission checks that a user whom etcd forbids to compact tries
// once. In an etcd with users only root may compact.
func TestCompactorWithoutPermission(t *testing.T) {
	server := etcdtest.StartSecure(t, "root", "tier")
	root := server.DialAs(t, "root")
	_, addRoot := root.UserAdd(t.Context(), "root", "secret")
	_, grant := root.UserGrantRole(t.Context(), "root", "root")
	_, addTier := root.UserAdd(t.Context(), "tier", "secret")
	_, enable := root.AuthEnable(t.Context())
	if err := errors.Join(addRoot, grant, addTier, enable); err != nil {
		t.Fatal(err)
	}
	now := clocktesting.NewFakeClock(time.Now())
	c := NewCompactor(server.DialAs(t, "tier"), time.Minute)
	c.clock = now
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.compact(t.Context())
	}()
	eventually(t, "it waits for its turn", now.HasWaiters)
	now.Step(time.Minute)
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		t.Error("it tried again")
	}
}
