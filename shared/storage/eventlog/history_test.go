package eventlog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/storage/kv"
)

// since returns the history as lines.
func since(t testing.TB, r *Reader, prefix string, after, upTo int64) ([]string, error) {
	t.Helper()
	var got []string
	err := r.Since(t.Context(), prefix, after, upTo, func(e kv.Event) error {
		got = append(got, fmt.Sprintf("%d %d %s %q %q", e.Revision, e.Kind, e.Key, e.Value, e.Previous))
		return nil
	})
	return got, err
}

// expect returns what since must return, from the events of the witness.
func (w *witness) expect(prefix string, after, upTo int64) (want []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Revision > after && e.Revision <= upTo && len(e.Key) > len(prefix) && e.Key[:len(prefix)] == prefix {
			want = append(want, fmt.Sprintf("%d %d %s %q %q", e.Revision, e.Kind, e.Key, e.Value, e.Previous))
		}
	}
	return want
}

func TestSinceBeyondCompaction(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	w := newWitness(t, b.etcd, b.routes)
	early, earlySink := b.read(t, nil)
	waitSource(t, early, earlySink, SourceStream)
	start := b.put(t, "leases/ns/quiet", "x")
	var revisions []int64
	for i := range 100 {
		revisions = append(revisions, b.put(t, fmt.Sprintf("pods/ns%d/p%d", i%2, i%7), fmt.Sprint("v", i)))
		if i%3 == 0 {
			b.put(t, "example.com/things/a", fmt.Sprint(i))
		}
	}
	end := b.put(t, "pods/ns0/last", "x")
	earlySink.until(t, end)
	w.until(t, end)
	if _, err := b.etcd.Compact(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	late, lateSink := b.read(t, nil)
	waitSource(t, late, lateSink, SourceStream)
	lateSink.until(t, end)
	for name, r := range map[string]*Reader{"that saw it": early, "that came later": late} {
		for _, tc := range []struct {
			prefix      string
			after, upTo int64
		}{
			{"/registry/pods/", start, end},
			{"/registry/pods/", revisions[10], revisions[60]},
			{"/registry/pods/ns1/", revisions[11], end},
			{"/registry/pods/", revisions[60], revisions[60]},
			{"/registry/leases/", start, end},
			{"/registry/leases/ns/", start - 1, end},
			{"/registry/configmaps/", start, end},
		} {
			got, err := since(t, r, tc.prefix, tc.after, tc.upTo)
			if err != nil {
				t.Errorf("reader %s, %v: %v", name, tc, err)
				continue
			}
			if diff := cmp.Diff(w.expect(tc.prefix, tc.after, tc.upTo), got); diff != "" {
				t.Errorf("reader %s, %v (-want +got):\n%s", name, tc, diff)
			}
		}
	}
	if _, err := since(t, early, "/registry/pods/", w.from-1, end); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("history before the stream: %v", err)
	}
	if _, err := since(t, early, "/registry/pods/", start, end+1000); err == nil {
		t.Error("history of the future")
	}
	if s := early.Status(); s.OldestHistory == 0 || s.OldestHistory > start {
		t.Errorf("oldest history %d, written from %d on", s.OldestHistory, start)
	}
}

func TestSinceEtcdWhereTheStreamDoesNotReach(t *testing.T) {
	b := newBench(t)
	w := newWitness(t, b.etcd, b.routes)
	first := b.put(t, "pods/ns/a", "1")
	b.put(t, "pods/ns/a", "2")
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	end := b.put(t, "pods/ns/a", "3")
	sink.until(t, end)
	w.until(t, end)
	got, err := since(t, r, "/registry/pods/", first, end)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w.expect("/registry/pods/", first, end), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A subject that lost messages proves nothing any more.
func TestSinceOfAPurgedSubjectIsNotTold(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	start := b.put(t, "pods/ns/a", "1")
	b.put(t, "pods/ns/a", "2")
	end := b.put(t, "leases/ns/a", "3")
	sink.until(t, end)
	stream, err := r.js.Stream(t.Context(), r.stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(b.routes.Route("/registry/pods/ns/a").Subject)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.etcd.Compact(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	late, lateSink := b.read(t, nil)
	waitSource(t, late, lateSink, SourceStream)
	for name, r := range map[string]*Reader{"that saw it": r, "that came later": late} {
		if got, err := since(t, r, "/registry/pods/", start, end); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("reader %s: %v, %v", name, got, err)
		}
	}
}

// Resuming on a quiet subject does not read the whole stream: Since asks etcd instead.
func TestSinceOfAQuietSubjectIsBounded(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	first, firstSink := b.read(t, nil)
	waitSource(t, first, firstSink, SourceStream)
	start := b.put(t, "leases/ns/quiet", "x")
	for i := range 100 {
		b.put(t, fmt.Sprintf("pods/ns/p%d", i%7), fmt.Sprint("v", i))
	}
	end := b.put(t, "pods/ns/last", "x")
	late, lateSink := b.read(t, func(r *Reader) { r.hooks.maxCoverageMessages = 20 })
	waitSource(t, late, lateSink, SourceStream)
	lateSink.until(t, end)
	if got, err := since(t, late, "/registry/leases/", start-1, end); err != nil || len(got) != 1 {
		t.Errorf("while etcd has it: %v, %v", got, err)
	}
	if _, err := b.etcd.Compact(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	if got, err := since(t, late, "/registry/leases/", start, end); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("when it is compacted: %v, %v", got, err)
	}
}

// The retained windows of all subjects together stay within their bound.
func TestWindowsAreBounded(t *testing.T) {
	h := newHistoryCache(nil, 1)
	for i := range 10 {
		subject := fmt.Sprint(i)
		w := &window{done: make(chan struct{}), bytes: maxRetainedBytes / 4}
		h.windows[subject] = w
		h.retain(subject, w)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bytes > maxRetainedBytes || len(h.retained) != 4 || len(h.windows) != 4 || h.windows["9"] == nil {
		t.Errorf("%d bytes in %d windows, %d found by subject", h.bytes, len(h.retained), len(h.windows))
	}
}
