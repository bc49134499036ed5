package nexttier

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// feed is the watch of a backend: events are sent to the client immediately.
type feed struct {
	events chan string
	ended  chan struct{}
}

func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer close(f.ended)
	w.(http.Flusher).Flush()
	for {
		select {
		case event, ok := <-f.events:
			if !ok {
				return
			}
			_, _ = io.WriteString(w, event)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (f *feed) wait() { <-f.ended }

func newFeed() *feed { return &feed{events: make(chan string), ended: make(chan struct{})} }

// opened waits for the headers of a response and returns its body.
func opened(t *testing.T, f *front, ctx context.Context, path string) io.ReadCloser {
	t.Helper()
	res, err := f.client.Do(f.request(t, http.MethodGet, path, nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("code %d", res.StatusCode)
	}
	return res.Body
}

func TestEventsAndTheirEndArriveImmediately(t *testing.T) {
	for _, path := range []string{"/api/v1/pods?watch=1", "/api/v1/pods"} {
		t.Run(path, func(t *testing.T) {
			feed := newFeed()
			b := startBackend(t, feed.ServeHTTP)
			f := startFront(t, startProxy(t, testConfig(b.url())))
			var body io.ReadCloser
			if strings.Contains(path, "watch") {
				body = opened(t, f, t.Context(), path) // before any event
			} else {
				// A short request of unknown length also forwards flushed data.
				go func() { feed.events <- "first\n" }()
				body = opened(t, f, t.Context(), path)
			}
			defer body.Close()
			lines := bufio.NewReader(body)
			if !strings.Contains(path, "watch") {
				if got, err := lines.ReadString('\n'); err != nil || got != "first\n" {
					t.Fatalf("got %q, %v", got, err)
				}
			}
			for _, event := range []string{"small\n", strings.Repeat("x", idleBufferSize-1) + "\n", strings.Repeat("y", copyBufferSize*3) + "\n", "small again\n"} {
				go func() { feed.events <- event }()
				if got, err := lines.ReadString('\n'); err != nil || got != event {
					t.Fatalf("got %d bytes, %v, want %d", len(got), err, len(event))
				}
			}
			close(feed.events)
			if _, err := lines.ReadByte(); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// TestBrokenBody checks that a watch ends when the connection to the next tier breaks, and that
// the client of any other request sees that the body is not whole.
func TestBrokenBody(t *testing.T) {
	for path, whole := range map[string]bool{
		"/api/v1/pods?watch=1":                         true,
		"/api/v1/watch/pods":                           true,
		"/api/v1/pods":                                 false,
		"/api/v1/namespaces/n/pods/p/log?follow=1":     false,
		"/api/v1/namespaces/n/pods/p/proxy/?watch=1":   false,
		"/api/v1/namespaces/n/services/s/proxy/stream": false,
	} {
		t.Run(path, func(t *testing.T) {
			b := startBackend(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "one\n")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			})
			f := startFront(t, startProxy(t, testConfig(b.url())))
			body := opened(t, f, t.Context(), path)
			defer body.Close()
			got, err := io.ReadAll(body)
			if string(got) != "one\n" || (err == nil) != whole {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestDisconnectCancelsTheForwardedRequest(t *testing.T) {
	for _, path := range []string{"/api/v1/pods?watch=1", "/api/v1/pods"} {
		for name, header := range map[string]bool{"after the header": true, "before the header": false} {
			t.Run(path+" "+name, func(t *testing.T) {
				entered, ended := make(chan struct{}), make(chan struct{})
				b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
					if header {
						w.(http.Flusher).Flush()
					}
					close(entered)
					<-r.Context().Done()
					close(ended)
				})
				f := startFront(t, startProxy(t, testConfig(b.url())))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { <-entered; cancel() }()
				res, err := f.client.Do(f.request(t, http.MethodGet, path, nil).WithContext(ctx))
				if err == nil {
					_, err = io.ReadAll(res.Body)
					res.Body.Close()
				}
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
				<-ended
			})
		}
	}
}

func TestMoreWatchesThanAConnectionHasStreams(t *testing.T) {
	const watches = 320
	var started atomic.Int64
	var mu sync.Mutex
	perConnection := map[string]int{}
	release := make(chan struct{})
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			return
		}
		mu.Lock()
		perConnection[r.RemoteAddr]++
		mu.Unlock()
		started.Add(1)
		w.(http.Flusher).Flush()
		select {
		case <-release:
			fmt.Fprintln(w, r.URL.Query().Get("n"))
		case <-r.Context().Done():
		}
	})
	c := testConfig(b.url())
	// Independent of the load of the machine.
	c.GiveUpAfter, c.DialTimeout = 20*time.Second, 20*time.Second
	p := startProxy(t, c)
	f := startFront(t, p)
	f.get(t, "/api") // otherwise the client opens a connection for each of the first requests
	var wg sync.WaitGroup
	for n := range watches {
		wg.Go(func() {
			res, err := f.client.Do(f.request(t, http.MethodGet, fmt.Sprintf("/api/v1/pods?watch=1&n=%d", n), nil))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if got, err := io.ReadAll(res.Body); err != nil || string(got) != fmt.Sprintln(n) {
				t.Errorf("watch %d: %q, %v", n, got, err)
			}
		})
	}
	eventually(t, "all watches have started", func() bool { return started.Load() == watches })
	r := (*p.replicas.Load())[0]
	for address, n := range perConnection {
		if n > 100 {
			t.Errorf("%d watches on the connection from %s", n, address)
		}
	}
	// More only if a busy machine makes the replica look down for a moment.
	if n := len(perConnection); n < 4 || n > 8 {
		t.Errorf("%d watches have %d connections, want 4", watches, n)
	}
	if n := r.inFlight[stream].Load(); n != watches {
		t.Errorf("%d in flight", n)
	}
	// Short requests have separate connections.
	if a := f.get(t, "/api/v1/pods"); a.code != http.StatusOK {
		t.Errorf("answer %+v", a)
	}
	close(release)
	wg.Wait()
	eventually(t, "nothing is in flight", func() bool { return r.inFlight[stream].Load() == 0 })
}

func TestStalledWatchBlocksNoOtherClient(t *testing.T) {
	var written [3]atomic.Int64
	chunk := bytes.Repeat([]byte("x"), 1000)
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscan(r.URL.Query().Get("n"), &n)
		for r.Context().Err() == nil {
			k, err := w.Write(chunk)
			if err != nil {
				return
			}
			w.(http.Flusher).Flush()
			written[n].Add(int64(k))
		}
	})
	p := startProxy(t, testConfig(b.url()))
	// The client is a writer that blocks, without the buffers of a connection.
	f := startFront(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stall := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		req := f.request(t, http.MethodGet, "/api/v1/pods?watch=1&n=0", nil)
		req.RemoteAddr = "127.0.0.1:1"
		ctx := apirequest.WithUser(ctx, alice)
		p.ServeHTTP(&stalledWriter{header: http.Header{}, stall: stall}, req.WithContext(ctx))
	}()
	eventually(t, "the first watch is stalled", func() bool { return written[0].Load() > 60_000 })
	for n := 1; n <= 2; n++ {
		body := opened(t, f, ctx, fmt.Sprintf("/api/v1/pods?watch=1&n=%d", n))
		if _, err := io.CopyN(io.Discard, body, 20<<20); err != nil {
			t.Error(err)
		}
		body.Close()
	}
	if size := (*p.replicas.Load())[0].pools[stream].size(); size != 1 {
		t.Errorf("the watches have %d connections, so this proves nothing", size)
	}
	// The window, a copy buffer, and the buffers of the server's writer.
	if n := written[0].Load(); n > streamWindow+copyBufferSize+32<<10 {
		t.Errorf("the stalled watch has taken %d bytes", n)
	}
	cancel()
	close(stall)
	<-done
}

// stalledWriter is a client that reads nothing until it is released.
type stalledWriter struct {
	header http.Header
	stall  chan struct{}
}

func (w *stalledWriter) Header() http.Header         { return w.header }
func (w *stalledWriter) WriteHeader(int)             {}
func (w *stalledWriter) Flush()                      {}
func (w *stalledWriter) Write(p []byte) (int, error) { <-w.stall; return len(p), nil }

type shutdownSignal chan struct{}

func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

func TestShutdownEndsWatches(t *testing.T) {
	feeds := sync.Map{}
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		feed := newFeed()
		feeds.Store(r.URL.Query().Get("n"), feed)
		feed.ServeHTTP(w, r)
	})
	signal := make(shutdownSignal)
	f := startFront(t, startProxy(t, testConfig(b.url())), func(ctx context.Context) context.Context {
		return apirequest.WithServerShutdownSignal(ctx, signal)
	})
	var bodies []io.ReadCloser
	for n := range 3 {
		body := opened(t, f, t.Context(), fmt.Sprintf("/api/v1/pods?watch=1&n=%d", n))
		defer body.Close()
		bodies = append(bodies, body)
	}
	close(signal)
	for _, body := range append(bodies, opened(t, f, t.Context(), "/api/v1/pods?watch=1&n=late")) {
		// A regular end, after which a client resumes its watch.
		if data, err := io.ReadAll(body); err != nil || len(data) > 0 {
			t.Errorf("watch ended with %q, %v", data, err)
		}
		body.Close()
	}
	feeds.Range(func(_, feed any) bool { feed.(interface{ wait() }).wait(); return true })
}
