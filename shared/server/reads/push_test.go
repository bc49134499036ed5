package reads

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/testing/polltest"
)

// directResponse is a response with a TryWrite that accepts everything unless it is full.
type directResponse struct {
	mu      sync.Mutex
	header  http.Header
	written bytes.Buffer
	// direct counts the bytes that the handler did not write.
	direct, flushed int
	full            bool
}

func (r *directResponse) Header() http.Header { return r.header }
func (r *directResponse) WriteHeader(int)     {}
func (r *directResponse) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushed++
}

func (r *directResponse) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written.Write(p)
}

func (r *directResponse) TryWrite(pieces [][]byte) (interface{ Flush() }, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full {
		return nil, false
	}
	for _, p := range pieces {
		r.written.Write(p)
	}
	r.direct += len(pieces)
	return r, true
}

func (r *directResponse) lines() int { return bytes.Count(r.written.Bytes(), []byte("\n")) }

// await polls until a condition is true.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	polltest.Until(t, 20*time.Second, what, so)
}

// TestEventsArePushed checks that events are pushed if the connection has room, that the
// handler's goroutine writes them otherwise, and that they are in order.
func TestEventsArePushed(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	w.create(t, pod("ns-1", "other", 1))
	from := w.revision(t)
	out := &directResponse{header: http.Header{}}
	req := w.newRequest(t, fmt.Sprintf("/api/v1/namespaces/ns-0/pods?watch=1&labelSelector=seen&resourceVersion=%d", from), http.Header{"Accept": {"application/json"}})
	ctx, cancel := context.WithCancel(req.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.handler(out, req.WithContext(ctx))
	}()
	const changes = 40
	for n := range changes {
		out.mu.Lock()
		out.full = n%4 == 3
		out.mu.Unlock()
		w.change(t, "ns-1", "other", func(obj kruntime.Object) { obj.(*corev1.Pod).Labels = map[string]string{"n": fmt.Sprint(n)} })
		w.change(t, "ns-0", "a", func(obj kruntime.Object) {
			obj.(*corev1.Pod).Labels = map[string]string{"seen": "yes", "n": fmt.Sprint(n)}
		})
		await(t, "event", func() bool {
			out.mu.Lock()
			defer out.mu.Unlock()
			return out.lines() == n+1 && out.flushed > 0
		})
	}
	cancel()
	<-ended
	text := out.written.String()
	at := 0
	for n := range changes {
		next := strings.Index(text[at:], fmt.Sprintf(`"n":"%d"`, n))
		if next < 0 {
			t.Fatalf("event %d is missing, or not in order", n)
		}
		at += next
	}
	if out.direct < changes/2 || out.direct >= changes {
		t.Errorf("%d of %d events were pushed, want three quarters", out.direct, changes)
	}
}

// TestPushAllocatesNothing checks that another watcher costs no allocation.
func TestPushAllocatesNothing(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	from := w.revision(t)
	for n := range 4 {
		w.change(t, "ns-0", "a", func(obj kruntime.Object) {
			obj.(*corev1.Pod).Labels = map[string]string{"app": "red", "n": fmt.Sprint(n)}
		})
	}
	w.revision(t)
	for _, query := range []string{"", "&labelSelector=app%3Dred", "&fieldSelector=spec.nodeName%3Dnode-1"} {
		s, _ := w.direct(t, fmt.Sprintf("/api/v1/pods?watch=1&resourceVersion=%d%s", from, query), "application/json")
		changes, err := s.watch.Next(t.Context())
		if err != nil || len(changes.List) != 4 {
			t.Fatalf("%d changes, %v", len(changes.List), err)
		}
		client := &forgetful{}
		s.direct = client
		var batch bytecache.Batch
		if n := testing.AllocsPerRun(100, func() {
			if !s.Push(changes, &batch) {
				t.Fatal("refused")
			}
		}); n != 0 || client.bytes < 101*4*400 {
			t.Errorf("%s: %v allocations, %d bytes", query, n, client.bytes)
		}
	}
}

// forgetful accepts and discards everything.
type forgetful struct{ bytes int }

func (f *forgetful) Flush() {}
func (f *forgetful) TryWrite(pieces [][]byte) (interface{ Flush() }, bool) {
	for _, p := range pieces {
		f.bytes += len(p)
	}
	return f, true
}
