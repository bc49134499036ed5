package bytecache

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"triune.dev/shared/storage/kv"
)

// countedHistory counts the reads of history and the events in them.
type countedHistory struct {
	*sealedEtcd
	reads, events atomic.Int64
}

func (h *countedHistory) Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	h.reads.Add(1)
	return h.sealedEtcd.Since(ctx, prefix, after, upTo, func(e kv.Event) error {
		h.events.Add(1)
		return yield(e)
	})
}

// cacheWithHistory returns a cache whose log has dropped most of n changes of about 1 kB.
func cacheWithHistory(t *testing.T, n int, config Config) (*countedHistory, *Cache) {
	t.Helper()
	history := &countedHistory{sealedEtcd: &sealedEtcd{now: 100, values: map[string]string{"/plain/a": "0"}}}
	config.Origin, config.Feed = history, history
	config.LogBytes = 20_000
	space := New(config)
	c, err := space.Cache("/plain/", Options{})
	if err != nil {
		t.Fatal(err)
	}
	space.Reset(100)
	if err := c.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		apply(c, history.put("/plain/a", fmt.Sprintf("%d %s", i+1, strings.Repeat("x", 1000))))
	}
	return history, c
}

// resume reads everything after a revision, and checks that it is complete.
func resume(t *testing.T, c *Cache, after, last int64) {
	t.Helper()
	cursor, err := c.Cursor(t.Context(), after)
	if err != nil {
		t.Error(err)
		return
	}
	for at := after; at < last; {
		changes, err := cursor.Next(t.Context(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		for _, change := range changes.List {
			if at++; change.Revision != at || !strings.HasPrefix(string(change.Now.Data()), fmt.Sprintf("%d ", at-100)) {
				t.Errorf("revision %d with %.10q, want %d", change.Revision, change.Now.Data(), at)
				return
			}
		}
	}
}

// TestResumingCursorsShareOneHistoryRead checks that cursors that resume at about the same
// time and revision cause one read of history and share its changes.
func TestResumingCursorsShareOneHistoryRead(t *testing.T) {
	history, c := cacheWithHistory(t, 1000, Config{})
	var watches sync.WaitGroup
	for i := range 200 {
		watches.Go(func() { resume(t, c, 100+int64(i%10), 1100) })
	}
	watches.Wait()
	// A cursor that resumes before the first one reads the revisions between them, too.
	if reads, events := history.reads.Load(), history.events.Load(); reads > 10 || events > 1000 {
		t.Errorf("200 watches read history %d times, %d events, want 1,000 at most", reads, events)
	}
}

// TestHistoryWindowsAreBounded checks that cached history stays within its limit, and is
// read again when it was evicted.
func TestHistoryWindowsAreBounded(t *testing.T) {
	const limit = 100_000
	_, c := cacheWithHistory(t, 1000, Config{HistoryBytes: limit})
	c.space.historyBytes = 10_000
	for _, after := range []int64{100, 600, 100, 300} {
		resume(t, c, after, 1100)
		windows := &c.space.windows
		var size int64
		for _, w := range windows.byCache[c] {
			size += w.size
		}
		if windows.bytes > limit || size != windows.bytes || len(windows.lru) != len(windows.byCache[c]) {
			t.Errorf("%d bytes, %d counted, in %d windows, %d in the LRU list", size, windows.bytes, len(windows.byCache[c]), len(windows.lru))
		}
	}
	c.space.Reset(1200)
	if c.space.windows.bytes != 0 || len(c.space.windows.lru) != 0 {
		t.Errorf("%d bytes after a reset", c.space.windows.bytes)
	}
}
