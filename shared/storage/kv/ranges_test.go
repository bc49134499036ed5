package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"triune.dev/shared/testing/etcdtest"
)

// Batches of ranges that arrive at different times are merged in order, and no revision is
// delivered before all its events are there.
func TestOrder(t *testing.T) {
	event := func(key string, revision int64) Event { return Event{Key: key, Revision: revision} }
	for _, tc := range []struct {
		name  string
		given []Batch // of range 0, 1, 2, 0, 1, …
		want  []Batch
	}{
		{
			name:  "events of one range wait for the others",
			given: []Batch{{Events: []Event{event("a", 12)}, Revision: 12}, {Revision: 15, Progress: true}, {Revision: 15, Progress: true}, {Revision: 15, Progress: true}},
			want:  []Batch{{Revision: 10}, {Revision: 10}, {Revision: 12, Events: []Event{event("a", 12)}}, {Revision: 15, Progress: true}},
		},
		{
			name: "a lagging range comes first",
			given: []Batch{
				{Events: []Event{event("a", 14)}, Revision: 14}, {Events: []Event{event("b", 11), event("b", 13)}, Revision: 13},
				{Events: []Event{event("c", 12)}, Revision: 12}, {Revision: 14, Progress: true}, {Revision: 14, Progress: true}, {Revision: 14, Progress: true},
			},
			want: []Batch{
				{Revision: 10}, {Revision: 10}, {Revision: 12, Events: []Event{event("b", 11), event("c", 12)}},
				{Revision: 12}, {Revision: 12}, {Revision: 14, Events: []Event{event("b", 13), event("a", 14)}},
			},
		},
		{
			name: "a transaction on two ranges is one revision",
			given: []Batch{
				{Events: []Event{event("a", 11)}, Revision: 11}, {Events: []Event{event("b", 11)}, Revision: 11}, {Revision: 11, Progress: true},
			},
			want: []Batch{{Revision: 10}, {Revision: 10}, {Revision: 11, Events: []Event{event("a", 11), event("b", 11)}}},
		},
		{
			name:  "progress without events is delivered once",
			given: []Batch{{Revision: 10, Progress: true}, {Revision: 10, Progress: true}, {Revision: 10, Progress: true}},
			want:  []Batch{{Revision: 10, Progress: true}, {Revision: 10}, {Revision: 10}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOrder(3, 10)
			for i, given := range tc.given {
				if diff := cmp.Diff(tc.want[i], o.add(i%3, given)); diff != "" {
					t.Errorf("batch %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// rangesOf returns every other one of some prefixes; the first and the third are in one
// watch of ranges.
func rangesOf(prefix string) []KeyRange {
	return []KeyRange{PrefixKeys(prefix + "a/"), PrefixKeys(prefix + "c/"), {Key: prefix + "e/", End: prefix + "g"}}
}

func inRanges(ranges []KeyRange, key string) bool {
	for _, r := range ranges {
		if key >= r.Key && key < r.End {
			return true
		}
	}
	return false
}

// writeRandomly makes changes below a prefix: puts, deletions of ranges, and transactions
// on several keys. It returns the last revision.
func writeRandomly(ctx context.Context, etcd *clientv3.Client, prefix string, n int, random *rand.Rand) (last int64, err error) {
	group := func() string { return prefix + string('a'+rune(random.IntN(7))) }
	key := func() string { return fmt.Sprintf("%s/%d", group(), random.IntN(5)) }
	for i := range n {
		ops := map[string]clientv3.Op{}
		switch random.IntN(6) {
		case 0:
			from := group()
			ops[from] = clientv3.OpDelete(from, clientv3.WithRange(prefix+"z"))
		case 1:
			for range 4 {
				k := key()
				ops[k] = clientv3.OpPut(k, fmt.Sprint(i))
			}
		default:
			k := key()
			ops[k] = clientv3.OpPut(k, fmt.Sprint(i))
		}
		resp, err := etcd.Txn(ctx).Then(slices.Collect(maps.Values(ops))...).Commit()
		if err != nil {
			return 0, err
		}
		last = resp.Header.GetRevision()
	}
	return last, nil
}

// follow reads a stream until a revision, and checks that no event of a batch is after its
// revision.
func follow(t *testing.T, c *Client, s *Stream, until int64) []Event {
	t.Helper()
	var all []Event
	again := time.NewTicker(progressInterval)
	defer again.Stop()
	deadline := time.After(3 * time.Minute)
	for reached := int64(0); reached < until; {
		select {
		case resp, ok := <-s.C():
			if !ok {
				t.Fatal("the stream ended")
			}
			b, err := s.Accept(resp)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range b.Events {
				if e.Revision <= reached || e.Revision > b.Revision {
					t.Fatalf("%s at %d after %d in a batch until %d", e.Key, e.Revision, reached, b.Revision)
				}
			}
			all = append(all, b.Events...)
			reached = max(reached, b.Revision)
		case <-again.C:
			if err := c.RequestProgress(t.Context()); err != nil {
				t.Fatal(err)
			}
		case <-deadline:
			t.Fatal("not in 3 minutes")
		}
	}
	return all
}

// compare compares the events of a watch of ranges with those of a single watch of
// everything. Within a revision the order may differ.
func compare(t *testing.T, ranges []KeyRange, everything, got []Event, until int64) {
	t.Helper()
	pick := func(events []Event) map[int64]map[string]string {
		out := map[int64]map[string]string{}
		for _, e := range events {
			if !inRanges(ranges, e.Key) || e.Revision > until {
				continue
			}
			if out[e.Revision] == nil {
				out[e.Revision] = map[string]string{}
			}
			out[e.Revision][e.Key] = fmt.Sprint(e.Kind, string(e.Value), string(e.Previous))
		}
		return out
	}
	if diff := cmp.Diff(pick(everything), pick(got)); diff != "" {
		t.Errorf("events by revision (-one watch +ranges):\n%s", diff)
	}
	for _, e := range got {
		if !inRanges(ranges, e.Key) {
			t.Errorf("%s is in no range", e.Key)
		}
	}
}

// A watch of several ranges delivers the same events as a single watch of everything,
// revision by revision, from the past and while they happen.
func TestWatchOfRanges(t *testing.T) {
	server := etcdtest.Start(t)
	for name, etcd := range map[string]*clientv3.Client{"gRPC": server.Dial(t), "in process": server.InProcess()} {
		t.Run(name, func(t *testing.T) {
			prefix := "/" + name + "/"
			random := rand.New(rand.NewPCG(1, 2))
			before := mustPut(t, New(etcd), Put{Key: prefix + "a/0", Value: []byte("first")})
			if _, err := writeRandomly(t.Context(), etcd, prefix, 300, random); err != nil {
				t.Fatal(err)
			}
			one, some := New(etcd), New(etcd)
			whole := one.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: before.Revision})
			parts := some.Watch(t.Context(), WatchOptions{Ranges: rangesOf(prefix), After: before.Revision})
			var writing errgroup.Group
			var last int64
			writing.Go(func() (err error) {
				last, err = writeRandomly(t.Context(), etcd, prefix, 300, random)
				return err
			})
			early := follow(t, some, parts, before.Revision+100)
			if err := writing.Wait(); err != nil {
				t.Fatal(err)
			}
			got := append(early, follow(t, some, parts, last)...)
			compare(t, rangesOf(prefix), follow(t, one, whole, last), got, last)
			if parts.Waiting() {
				t.Error("events wait although all ranges have reached the end")
			}
		})
	}
}

// An idle etcd answers each request for progress of a watch of several ranges.
func TestProgressOfRanges(t *testing.T) {
	c := New(etcdtest.Start(t).Dial(t))
	first := mustPut(t, c, Put{Key: "/p/a/0", Value: []byte("1")})
	// etcd does not confirm a watch that begins after the current revision.
	present := mustPut(t, c, Put{Key: "/p/b/1", Value: []byte("1")})
	s := c.Watch(t.Context(), WatchOptions{Ranges: rangesOf("/p/"), After: first.Revision})
	for range 3 {
		awaitProgress(t, c, s, present.Revision)
	}
	event := mustPut(t, c, Put{Key: "/p/c/0", Value: []byte("1")})
	elsewhere := mustPut(t, c, Put{Key: "/p/b/0", Value: []byte("1")})
	if got := follow(t, c, s, elsewhere.Revision); len(got) != 1 || got[0].Revision != event.Revision {
		t.Errorf("events %+v, want the one at %d", got, event.Revision)
	}
}

// A compaction in one range ends the stream of all ranges, as does a new connection.
func TestRangesEndTogether(t *testing.T) {
	server := etcdtest.Start(t)
	etcd := server.Dial(t)
	c := New(etcd)
	first := mustPut(t, c, Put{Key: "/p/a/0", Value: []byte("1")})
	last, err := writeRandomly(t.Context(), etcd, "/p/", 50, rand.New(rand.NewPCG(3, 4)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := c.Watch(ctx, WatchOptions{Ranges: rangesOf("/p/"), After: first.Revision})
	var compacted *CompactedError
	for resp := range s.C() {
		if _, err = s.Accept(resp); err != nil {
			break
		}
	}
	if !errors.As(err, &compacted) || compacted.Wanted != first.Revision {
		t.Errorf("a watch after %d, compacted at %d: %v", first.Revision, last, err)
	}
	cancel()
	for range s.C() {
	}

	s = c.Watch(t.Context(), WatchOptions{Ranges: rangesOf("/p/"), After: last})
	awaitProgress(t, c, s, mustPut(t, c, Put{Key: "/p/b/x", Value: []byte("1")}).Revision)
	server.Restart(t)
	mustPut(t, New(server.Dial(t)), Put{Key: "/p/c/new", Value: []byte("2")})
	select {
	case resp := <-s.C():
		if _, err := s.Accept(resp); !errors.Is(err, ErrReconnected) {
			t.Errorf("after a restart of etcd: %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Error("nothing in 3 minutes")
	}
}
