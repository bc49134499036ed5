package eventlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/kv"
	"triune.dev/shared/testing/etcdtest"
)

// ordered returns the events of a tier, with the events of each revision sorted by key: etcd
// orders the keys of a transaction differently, and a watch of several ranges differently
// again.
func ordered(events []kv.Event, routes *Routes, tier Tier, after, until int64) (out []string) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b kv.Event) int {
		if a.Revision != b.Revision {
			return int(a.Revision - b.Revision)
		}
		return strings.Compare(a.Key, b.Key)
	})
	for _, e := range events {
		if e.Revision > after && e.Revision <= until && (tier == "" || routes.Route(e.Key).Tier == tier) {
			out = append(out, fmt.Sprintf("%d %d %s %.40q %.40q", e.Revision, e.Kind, e.Key, e.Value, e.Previous))
		}
	}
	return out
}

// TestFallbackByRanges: without a stream, the reader of a tier watches the ranges of that tier.
// It gets the same events of the tier as a single watch of everything: complete revisions in
// order, including transactions across ranges, through a restart of etcd, and from before a
// compaction.
func TestFallbackByRanges(t *testing.T) {
	server, routes := etcdtest.Start(t), NewRoutes(DefaultCluster, "/registry")
	etcd := server.Dial(t)
	w := newWitness(t, etcd, routes)
	sinks := map[Tier]*recorder{}
	readers := map[Tier]*Reader{}
	for _, tier := range append([]Tier{""}, Tiers...) {
		r, err := NewReader(ReaderConfig{Etcd: server.Dial(t), Routes: routes, Tier: tier, Patience: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		sinks[tier], readers[tier] = newRecorder(), r
		background(t, func(ctx context.Context) error { return r.Run(ctx, sinks[tier]) })
		sinks[tier].wait(t, "first reset", func() bool { return len(sinks[tier].resets) > 0 })
	}
	random := rand.New(rand.NewPCG(5, 6))
	groups := []string{"0.example.com/a/", "apiregistration.k8s.io/apiservices/", "apiregistration.k8s.io/widgets/", "example.com/things/",
		"pods/", "pods.example.com/things/", "secrets/", "services/specs/", "zz.example.com/things/"}
	key := func() string {
		return fmt.Sprintf("/registry/%sns/%d", groups[random.IntN(len(groups))], random.IntN(4))
	}
	write := func(n int) (last int64) {
		t.Helper()
		for i := range n {
			ops := map[string]clientv3.Op{}
			for range 1 + random.IntN(5) {
				k := key()
				if ops[k] = clientv3.OpPut(k, fmt.Sprint(i)); random.IntN(4) == 0 {
					ops[k] = clientv3.OpDelete(k)
				}
			}
			var all []clientv3.Op
			for _, op := range ops {
				all = append(all, op)
			}
			resp, err := etcd.Txn(t.Context()).Then(all...).Commit()
			if err != nil {
				t.Fatal(err)
			}
			last = resp.Header.GetRevision()
		}
		return last
	}
	verify := func(last int64) {
		t.Helper()
		w.until(t, last)
		for tier, sink := range sinks {
			if err := readers[tier].RequestProgress(t.Context()); err != nil {
				t.Fatal(err)
			}
			sink.until(t, last)
			sink.mu.Lock()
			if len(sink.faults) > 0 || len(sink.resets) != 1 {
				t.Errorf("%q: faults %v, resets at %v", tier, sink.faults, sink.resets)
			}
			got := ordered(sink.events, routes, "", sink.resets[0], last)
			w.mu.Lock()
			want := ordered(w.events, routes, tier, sink.resets[0], last)
			w.mu.Unlock()
			sink.mu.Unlock()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q (-etcd +reader):\n%s", tier, diff)
			}
		}
	}
	lease, err := etcd.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		if _, err := etcd.Put(t.Context(), "/registry/"+group+"leased", "x", clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	write(200)
	if _, err := etcd.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	last := write(200)
	verify(last)

	if _, err := etcd.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	verify(write(100))
	for tier, r := range readers {
		if s := r.Status(); s.Resets != 0 || s.Source != SourceEtcd {
			t.Errorf("%q: %+v", tier, s)
		}
	}
}

// A reader that was cut off while etcd compacted what it has not seen restarts in all ranges
// and misses nothing that follows.
func TestFallbackAfterCompaction(t *testing.T) {
	b := &bench{server: etcdtest.Start(t), routes: NewRoutes(DefaultCluster, "/registry")}
	b.etcd = b.server.Dial(t)
	client, link := b.etcdThrough(t)
	r, err := NewReader(ReaderConfig{Etcd: client, Routes: b.routes, Tier: Extensions, Patience: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecorder()
	background(t, func(ctx context.Context) error { return r.Run(ctx, sink) })
	sink.wait(t, "first reset", func() bool { return len(sink.resets) > 0 })
	b.put(t, "a.example.com/things/a", "1")
	sink.until(t, b.put(t, "z.example.com/things/a", "1"))
	link.cut()
	b.put(t, "a.example.com/things/a", "unseen")
	compacted := b.put(t, "z.example.com/things/a", "unseen")
	if _, err := b.etcd.Compact(t.Context(), compacted); err != nil {
		t.Fatal(err)
	}
	link.mend()
	sink.wait(t, "second reset", func() bool { return len(sink.resets) > 1 })
	b.put(t, "a.example.com/things/a", "2")
	sink.until(t, b.put(t, "z.example.com/things/a", "2"))
	sink.mu.Lock()
	defer sink.mu.Unlock()
	var got []string
	for _, e := range sink.events {
		got = append(got, string(e.Value))
	}
	if diff := cmp.Diff([]string{"1", "1", "2", "2"}, got); diff != "" || len(sink.faults) > 0 || len(sink.resets) != 2 {
		t.Errorf("faults %v, resets %v, values (-want +got):\n%s", sink.faults, sink.resets, diff)
	}
}
