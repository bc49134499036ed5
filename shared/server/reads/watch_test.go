package reads

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
)

// TestStalledWatchers checks that a stalled watcher neither delays others nor retains
// memory, and misses nothing when it reads again.
func TestStalledWatchers(t *testing.T) {
	const stalled, changes, size, logged = 6, 150, 64 << 10, 4
	w := newHistoryWorld(t, bytecache.Config{LogBytes: logged * size, FormBytes: logged * size}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	query := fmt.Sprintf("/api/v1/pods?watch=1&resourceVersion=%d", w.revision(t))
	path := w.mine.URL + query
	ctx, cancel := context.WithCancel(t.Context())
	gate := make(chan struct{})
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	var bodies []io.Reader
	for range stalled {
		req := w.newRequest(t, query, http.Header{"Accept": {"application/json"}})
		info, _ := request.RequestInfoFrom(req.Context())
		body, out := io.Pipe()
		bodies = append(bodies, body)
		handlers.Go(func() {
			w.handler(&gated{header: http.Header{}, gate: gate, out: out}, req.WithContext(request.WithRequestInfo(ctx, info)))
		})
		defer body.Close()
	}
	reading := events(open(t, plainClient, t.Context(), path, "application/json").Body)
	big := strings.Repeat("x", size)
	var entries []weak.Pointer[bytecache.Entry]
	var last string
	for n := range changes {
		w.change(t, "ns-0", "a", func(obj kruntime.Object) {
			obj.(*corev1.Pod).Annotations = map[string]string{"n": strconv.Itoa(n), "big": big}
		})
		var e seenEvent
		if err := reading.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if got := e.Object.Metadata.Annotations["n"]; got != strconv.Itoa(n) {
			t.Fatalf("event %s, want %d", got, n)
		}
		entry, _ := w.cache.Peek(w.cache.Prefix() + "ns-0/a")
		entries = append(entries, weak.Make(entry))
		last = e.Object.Metadata.ResourceVersion
	}
	// The log, and the changes that a reader may still be writing.
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		retained := alive(entries)
		if retained <= 2*logged+stalled {
			break
		}
		if time.Since(begun) > 20*pendingTimeout {
			t.Fatalf("%d of %d states are still in memory", retained, changes)
		}
	}
	close(gate)
	for i, body := range bodies {
		stream := events(body)
		for n, revision := 0, ""; revision != last; n++ {
			var e seenEvent
			if err := stream.Decode(&e); err != nil {
				t.Fatalf("watcher %d, event %d: %v", i, n, err)
			}
			if got := e.Object.Metadata.Annotations["n"]; got != strconv.Itoa(n) {
				t.Fatalf("watcher %d: event %s, want %d", i, got, n)
			}
			revision = e.Object.Metadata.ResourceVersion
		}
	}
}

// gated is the response of a client that reads nothing until the gate opens.
type gated struct {
	header http.Header
	gate   chan struct{}
	out    io.Writer
}

func (g *gated) Header() http.Header { return g.header }
func (g *gated) WriteHeader(int)     {}
func (g *gated) Flush()              {}

func (g *gated) Write(p []byte) (int, error) {
	<-g.gate
	return g.out.Write(p)
}

func alive(entries []weak.Pointer[bytecache.Entry]) (count int) {
	runtime.GC()
	for _, e := range entries {
		if e.Value() != nil {
			count++
		}
	}
	return count
}

// TestLargeRevision checks that the changes of one large revision are written in parts,
// without gaps or repetitions.
func TestLargeRevision(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	lease, err := w.client.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const pods = 300
	for i := range pods {
		p := w.create(t, pod("ns-0", fmt.Sprintf("p-%03d", i), 1)).(*corev1.Pod)
		key := w.cache.Prefix() + "ns-0/" + p.Name
		item, err := w.client.Get(t.Context(), key, kv.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Put(t.Context(), kv.Put{Key: key, Value: item.KV.Value, Expected: item.KV.ModRevision, Lease: lease}); err != nil {
			t.Fatal(err)
		}
	}
	from := w.revision(t)
	stream := events(open(t, plainClient, t.Context(), fmt.Sprintf("%s/api/v1/pods?watch=1&resourceVersion=%d", w.mine.URL, from), "application/json").Body)
	if _, err := w.etcd.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	w.create(t, pod("ns-0", "after", 1))
	gone := map[string]bool{}
	for {
		var e seenEvent
		if err := stream.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Type == "ADDED" {
			break
		}
		if e.Type != "DELETED" || e.Object.Metadata.ResourceVersion != strconv.FormatInt(from+1, 10) || gone[e.key()] {
			t.Fatalf("%s of %s at %s", e.Type, e.key(), e.Object.Metadata.ResourceVersion)
		}
		gone[e.key()] = true
	}
	if len(gone) != pods {
		t.Errorf("%d deletions, want %d", len(gone), pods)
	}
}

// shutdownSignal is that of a server.
type shutdownSignal chan struct{}

func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// TestWatchEnds checks that a watch, and its goroutine, end with the client, the timeout
// and the server.
func TestWatchEnds(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	w.revision(t)
	for name, end := range map[string]func(cancel func(), signal shutdownSignal){
		"client gone": func(cancel func(), _ shutdownSignal) { cancel() },
		"shutdown":    func(_ func(), signal shutdownSignal) { close(signal) },
		"timeout":     func(func(), shutdownSignal) {},
	} {
		t.Run(name, func(t *testing.T) {
			signal := shutdownSignal(make(chan struct{}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended, begun := make(chan struct{}), make(chan struct{})
			req := w.newRequest(t, "/api/v1/pods?watch=1&timeoutSeconds=1", http.Header{})
			info, _ := request.RequestInfoFrom(req.Context())
			ctx = request.WithServerShutdownSignal(request.WithRequestInfo(ctx, info), signal)
			go func() {
				defer close(ended)
				w.handler(&begins{header: http.Header{}, flushed: begun}, req.WithContext(ctx))
			}()
			<-begun
			end(cancel, signal)
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Fatal("the handler did not return")
			}
		})
	}
}

// begins is a response that reports when the initial events have been flushed.
type begins struct {
	header  http.Header
	written int
	flushed chan struct{}
	once    sync.Once
}

func (b *begins) Header() http.Header { return b.header }
func (b *begins) WriteHeader(int)     {}

func (b *begins) Write(p []byte) (int, error) {
	b.written += len(p)
	return len(p), nil
}

func (b *begins) Flush() {
	if b.written > 0 {
		b.once.Do(func() { close(b.flushed) })
	}
}
