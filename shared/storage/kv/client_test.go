package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"triune.dev/shared/testing/etcdtest"
)

// TestClient runs over gRPC and in process, with the same results.
func TestClient(t *testing.T) {
	server := etcdtest.Start(t)
	for name, etcd := range map[string]*clientv3.Client{"gRPC": server.Dial(t), "in process": server.InProcess()} {
		t.Run(name, func(t *testing.T) {
			c := New(etcd)
			prefix := "/" + name + "/"
			t.Run("conditional writes", func(t *testing.T) { testWrites(t, c, prefix+"writes/") })
			t.Run("reads at revisions", func(t *testing.T) { testReads(t, c, prefix+"reads/") })
			t.Run("pages", func(t *testing.T) { testPages(t, c, prefix+"pages/") })
			t.Run("watch", func(t *testing.T) { testWatch(t, c, prefix+"watch/") })
			t.Run("progress", func(t *testing.T) { testProgress(t, c, prefix+"progress/") })
			t.Run("missing previous value", func(t *testing.T) { testFetchPrevious(t, c, prefix+"previous/") })
			t.Run("watch from a future revision", func(t *testing.T) { testFuture(t, c, prefix+"future/") })
			t.Run("large revision in one batch", func(t *testing.T) { testLargeRevision(t, c, prefix+"large/") })
			t.Run("no goroutine leak", func(t *testing.T) { testNoLeak(t, c, prefix+"leak/") })
			t.Run("progress before the start", func(t *testing.T) { testStaleProgress(t, c, prefix+"stale/") })
			t.Run("compacted history", func(t *testing.T) { testCompacted(t, c, prefix+"compacted/") })
		})
	}
}

func mustPut(t *testing.T, c *Client, p Put) Written {
	t.Helper()
	w, err := c.Put(t.Context(), p)
	if err != nil || !w.Done {
		t.Fatalf("put %s over %d: done %t, %v", p.Key, p.Expected, w.Done, err)
	}
	return w
}

func testWrites(t *testing.T, c *Client, prefix string) {
	ctx, key := t.Context(), prefix+"a"
	created := mustPut(t, c, Put{Key: key, Value: []byte("1")})
	refused, err := c.Put(ctx, Put{Key: key, Value: []byte("2"), Reread: true})
	if err != nil || refused.Done || refused.Current == nil || string(refused.Current.Value) != "1" {
		t.Fatalf("create twice: %+v, %v", refused, err)
	}
	silent, err := c.Put(ctx, Put{Key: key, Value: []byte("2")})
	if err != nil || silent.Done || silent.Current != nil {
		t.Fatalf("create twice without rereading: %+v, %v", silent, err)
	}
	updated := mustPut(t, c, Put{Key: key, Value: []byte("2"), Expected: created.Revision})
	stale, err := c.Delete(ctx, key, created.Revision)
	if err != nil || stale.Done || stale.Current.ModRevision != updated.Revision {
		t.Fatalf("delete at an old revision: %+v, %v", stale, err)
	}
	gone, err := c.Delete(ctx, key, updated.Revision)
	if err != nil || !gone.Done {
		t.Fatalf("delete: %+v, %v", gone, err)
	}
	absent, err := c.Delete(ctx, key, updated.Revision)
	if err != nil || absent.Done || absent.Current != nil {
		t.Fatalf("delete an absent key: %+v, %v", absent, err)
	}
	lease, err := c.Grant(ctx, 1500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	left, err := c.Etcd().TimeToLive(ctx, lease)
	if err != nil || left.GrantedTTL != 2 {
		t.Errorf("a lease of 1.5 s lasts %d s, want it rounded up: %v", left.GrantedTTL, err)
	}
}

func testReads(t *testing.T, c *Client, prefix string) {
	ctx, key := t.Context(), prefix+"a"
	first := mustPut(t, c, Put{Key: key, Value: []byte("1")})
	second := mustPut(t, c, Put{Key: key, Value: []byte("2"), Expected: first.Revision})
	for _, tc := range []struct {
		name string
		key  string
		o    ReadOptions
		want string
		err  error
	}{
		{name: "now", key: key, want: "2"},
		{name: "now, from any member", key: key, o: ReadOptions{Serializable: true}, want: "2"},
		{name: "then", key: key, o: ReadOptions{Revision: first.Revision}, want: "1"},
		{name: "absent", key: prefix + "b"},
		{name: "future", key: key, o: ReadOptions{Revision: second.Revision + 100}, err: rpctypes.ErrFutureRev},
	} {
		item, err := c.Get(ctx, tc.key, tc.o)
		if !errors.Is(err, tc.err) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.err)
			continue
		}
		got := ""
		if item.KV != nil {
			got = string(item.KV.Value)
		}
		if got != tc.want || (err == nil && item.Revision < second.Revision) {
			t.Errorf("%s: %q at %d, want %q at %d or later", tc.name, got, item.Revision, tc.want, second.Revision)
		}
	}
	if rev, err := c.Revision(ctx, prefix); err != nil || rev < second.Revision {
		t.Errorf("current revision %d, %v", rev, err)
	}
	var observed int
	watched := NewObserved(c.Etcd(), func(context.Context, time.Duration) { observed++ })
	if _, err := watched.Get(ctx, key, ReadOptions{}); err != nil || observed != 1 {
		t.Errorf("the observer counted %d reads, want 1: %v", observed, err)
	}
}

func testPages(t *testing.T, c *Client, prefix string) {
	for i := range 5 {
		mustPut(t, c, Put{Key: fmt.Sprintf("%s%d", prefix, i), Value: []byte("x")})
	}
	mustPut(t, c, Put{Key: prefix[:len(prefix)-1] + "0", Value: []byte("beside the prefix")})
	r := PrefixRange(prefix, "")
	r.Limit = 2
	page, err := c.List(t.Context(), r)
	if err != nil || len(page.KVs) != 2 || page.Count != 5 || !page.More() {
		t.Fatalf("first page: %d keys of %d, %v", len(page.KVs), page.Count, err)
	}
	rest := PrefixRange(prefix, string(page.KVs[1].Key)+"\x00")
	rest.Revision, rest.KeysOnly = page.Revision, true
	page, err = c.List(t.Context(), rest)
	if err != nil || len(page.KVs) != 3 || page.More() || len(page.KVs[0].Value) != 0 {
		t.Fatalf("the rest: %d keys of %d, %v", len(page.KVs), page.Count, err)
	}
	if n, err := c.Count(t.Context(), prefix); err != nil || n != 5 {
		t.Errorf("count %d, %v", n, err)
	}
}

// next receives the next batch with events.
func next(t *testing.T, s *Stream) Batch {
	t.Helper()
	for {
		select {
		case resp, ok := <-s.C():
			if !ok {
				t.Fatal("the stream ended")
			}
			batch, err := s.Accept(resp)
			if err != nil {
				t.Fatalf("stream: %v", err)
			}
			if len(batch.Events) > 0 || batch.Progress {
				return batch
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no event in 10 s")
		}
	}
}

func testWatch(t *testing.T, c *Client, prefix string) {
	before := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("1")})
	s := c.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: before.Revision})
	updated := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("2"), Expected: before.Revision})
	gone, err := c.Delete(t.Context(), prefix+"a", updated.Revision)
	if err != nil {
		t.Fatal(err)
	}
	var got []Event
	for len(got) < 2 {
		got = append(got, next(t, s).Events...)
	}
	want := []Event{
		{Kind: Modified, Key: prefix + "a", Revision: updated.Revision, Value: []byte("2"), Previous: []byte("1")},
		{Kind: Deleted, Key: prefix + "a", Revision: gone.Revision, Previous: []byte("2")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func testProgress(t *testing.T, c *Client, prefix string) {
	now, err := c.Revision(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: now})
	elsewhere := mustPut(t, c, Put{Key: prefix[:len(prefix)-1] + "-elsewhere", Value: []byte("1")})
	awaitProgress(t, c, s, elsewhere.Revision)
}

func awaitProgress(t *testing.T, c *Client, s *Stream, revision int64) {
	t.Helper()
	// etcd answers once the watch has caught up; ask until it does.
	ask := time.NewTicker(progressInterval + 10*time.Millisecond)
	defer ask.Stop()
	deadline := time.After(10 * time.Second)
	for {
		if err := c.RequestProgress(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case resp := <-s.C():
			batch, err := s.Accept(resp)
			if err != nil {
				t.Fatal(err)
			}
			if batch.Progress && batch.Revision >= revision {
				return
			}
		case <-ask.C:
		case <-deadline:
			t.Fatal("no progress in 10 s")
		}
	}
}

// testFuture checks that the watch receives only events after its revision, and progress
// before they come.
func testFuture(t *testing.T, c *Client, prefix string) {
	now, err := c.Revision(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: now + 1})
	mustPut(t, c, Put{Key: prefix + "a", Value: []byte("too early")})
	wanted := mustPut(t, c, Put{Key: prefix + "b", Value: []byte("wanted")})
	if batch := next(t, s); len(batch.Events) != 1 || batch.Events[0].Revision != wanted.Revision {
		t.Errorf("batch %+v, want the event at %d", batch, wanted.Revision)
	}
	never := c.Watch(t.Context(), WatchOptions{Key: prefix + "never", After: wanted.Revision + 1_000_000})
	elsewhere := mustPut(t, c, Put{Key: prefix + "elsewhere", Value: []byte("1")})
	awaitProgress(t, c, never, elsewhere.Revision)
}

// testStaleProgress checks that progress from before the start of a watch is ignored: etcd
// may send it.
func testStaleProgress(t *testing.T, c *Client, prefix string) {
	now, err := c.Revision(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: now})
	accept := func(name string, resp Response, want bool) {
		t.Helper()
		batch, err := s.Accept(resp)
		if err != nil || batch.Progress != want {
			t.Errorf("%s: %+v, %v, want it used: %t", name, batch, err, want)
		}
	}
	progress := Response{WatchResponse: clientv3.WatchResponse{Header: etcdserverpb.ResponseHeader{Revision: now + 100}}}
	accept("before the acknowledgement", progress, false)
	accept("the acknowledgement", <-s.C(), false)
	progress.Header.RaftTerm = s.generation
	accept("from after the acknowledgement", progress, true)
}

// testFetchPrevious checks that an event without its previous value gets it, unless the
// revision is compacted.
func testFetchPrevious(t *testing.T, c *Client, prefix string) {
	first := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("1")})
	second := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("2"), Expected: first.Revision})
	s := c.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: first.Revision})
	resp := Response{WatchResponse: clientv3.WatchResponse{Events: []*clientv3.Event{put(prefix+"a", "2", first.Revision, second.Revision, nil)}}}
	batch, err := s.Accept(resp)
	if err != nil || len(batch.Events) != 1 || string(batch.Events[0].Previous) != "1" {
		t.Errorf("batch %+v, %v, want the previous value", batch, err)
	}
}

func testLargeRevision(t *testing.T, c *Client, prefix string) {
	// 100 keys of 64 KiB are deleted when their lease is revoked: with the previous values,
	// several times the size of a gRPC message.
	value := bytes.Repeat([]byte("x"), 64<<10)
	lease, err := c.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var last Written
	for i := range 100 {
		last = mustPut(t, c, Put{Key: fmt.Sprintf("%s%03d", prefix, i), Value: value, Lease: lease})
	}
	s := c.Watch(t.Context(), WatchOptions{Key: prefix, Prefix: true, After: last.Revision})
	if _, err := c.Etcd().Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	batch := next(t, s)
	if len(batch.Events) != 100 {
		t.Fatalf("%d events in the batch, want all 100 of the revision", len(batch.Events))
	}
	for _, e := range batch.Events {
		if e.Kind != Deleted || e.Revision != batch.Revision || !bytes.Equal(e.Previous, value) {
			t.Fatalf("event %v of %s at %d with %d bytes before", e.Kind, e.Key, e.Revision, len(e.Previous))
		}
	}
}

func testNoLeak(t *testing.T, c *Client, prefix string) {
	keep := c.Watch(t.Context(), WatchOptions{Key: prefix + "keep"})
	defer goleak.VerifyNone(t, etcdtest.Goroutines()...)
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		s := c.Watch(ctx, WatchOptions{Key: fmt.Sprintf("%s%d", prefix, i)})
		cancel()
		for range s.C() {
		}
	}
	_ = keep
}

func testCompacted(t *testing.T, c *Client, prefix string) {
	old := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("1")})
	mid := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("2"), Expected: old.Revision})
	newest := mustPut(t, c, Put{Key: prefix + "a", Value: []byte("3"), Expected: mid.Revision})
	if _, err := c.Etcd().Compact(t.Context(), newest.Revision); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), prefix+"a", ReadOptions{Revision: old.Revision}); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("get at a compacted revision: %v", err)
	}
	for _, tc := range []struct {
		name  string
		after int64
	}{
		{"history is gone", old.Revision},
		{"only the value before is gone", newest.Revision - 1},
	} {
		s := c.Watch(t.Context(), WatchOptions{Key: prefix + "a", After: tc.after})
		var err error
		for err == nil { // acknowledgements come first
			_, err = s.Accept(<-s.C())
		}
		var compacted *CompactedError
		if !errors.As(err, &compacted) || compacted.Wanted != tc.after {
			t.Errorf("%s: watch after %d: %v", tc.name, tc.after, err)
		}
	}
}
