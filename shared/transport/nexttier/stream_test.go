package nexttier

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
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

func TestLargeBodiesAreStreamedBothWays(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		// One piece in, one piece out: neither direction waits for the end of the other.
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		buffer := make([]byte, 1<<20)
		for {
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(buffer[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	reader, writer := io.Pipe()
	res, err := f.client.Do(f.request(t, http.MethodPost, "/api/v1/namespaces/n/services/s/proxy/x", reader))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	piece := make([]byte, 300<<10)
	_, _ = rand.Read(piece)
	got := make([]byte, len(piece))
	for range 50 {
		go func() { _, _ = writer.Write(piece) }()
		if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, piece) {
			t.Fatalf("the piece came back as another one (%v)", err)
		}
	}
	writer.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("at the end: %d bytes, %v", len(rest), err)
	}
}

func TestAbortedUploadIsNotCompleted(t *testing.T) {
	started, got := make(chan struct{}), make(chan error, 1)
	b := startBackend(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, len("half of")))
		close(started)
		_, err := io.ReadAll(r.Body)
		got <- err
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	reader, writer := io.Pipe()
	go func() {
		_, _ = io.WriteString(writer, "half of")
		<-started
		_ = writer.CloseWithError(errors.New("the client's disk broke"))
	}()
	if a, err := f.try(f.request(t, http.MethodPost, "/api/v1/pods", reader)); err == nil {
		t.Errorf("answer %+v", a)
	}
	if err := <-got; err == nil {
		t.Error("the next tier took half a body for the whole")
	}
}

// A handler that answers without reading the request sends a complete response. A client that sees
// an error stops sending without a notice (RFC 9113, section 8.1), and the proxy must not wait for
// the rest of the request.
func TestAnswerBeforeTheBody(t *testing.T) {
	for _, test := range []struct {
		path string // of a stream and of a short request
		code int
	}{
		{"/api/v1/nodes/none-such/proxy", http.StatusNotFound},
		{"/api/v1/nodes/none-such/proxy", http.StatusOK},
		{"/api/v1/nodes/none-such", http.StatusNotFound},
	} {
		t.Run(fmt.Sprint(test.path, " ", test.code), func(t *testing.T) {
			b := startBackend(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.code)
				_, _ = io.WriteString(w, "answer")
			})
			f := startFront(t, startProxy(t, testConfig(b.url())))
			sending, stop := io.Pipe() // never sends
			defer stop.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			got := f.do(t, f.request(t, http.MethodPatch, test.path, sending).WithContext(ctx))
			if got.code != test.code || got.body != "answer" {
				t.Errorf("got %d %q", got.code, got.body)
			}
		})
	}
}

func TestCompressedBodiesAreForwardedUnchanged(t *testing.T) {
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	fmt.Fprint(z, strings.Repeat("list", 10_000))
	z.Close()
	encodings := make(chan string, 1)
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		encodings <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(compressed.Bytes())
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	req := f.request(t, http.MethodGet, "/api/v1/pods", nil)
	req.Header.Set("Accept-Encoding", "gzip, br")
	a := f.do(t, req)
	if a.body != compressed.String() || a.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%d bytes, header %v", len(a.body), a.header)
	}
	if got := <-encodings; got != "gzip, br" {
		t.Errorf("the next tier was asked for %q", got)
	}
	// The proxy does not request compression on its own.
	f.client.Transport.(*http.Transport).DisableCompression = true
	f.get(t, "/api/v1/pods")
	if got := <-encodings; got != "" {
		t.Errorf("the next tier was asked for %q", got)
	}
}

func TestTrailersAreForwarded(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Announced")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Announced", r.Trailer.Get("X-Sent"))
		w.Header().Set(http.TrailerPrefix+"X-Surprise", "2")
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	req := f.request(t, http.MethodPost, "/x", io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Sent": {"1"}}
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "body" {
		t.Errorf("body %q, %v", body, err)
	}
	if res.Trailer.Get("X-Announced") != "1" || res.Trailer.Get("X-Surprise") != "2" {
		t.Errorf("trailers %v", res.Trailer)
	}
}

func TestDeadlineOfTheRequestIs504(t *testing.T) {
	b := startBackend(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f := startFront(t, startProxy(t, testConfig(b.url())), func(ctx context.Context) context.Context {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		context.AfterFunc(ctx, cancel)
		return ctx
	})
	a := f.get(t, "/api/v1/pods")
	if a.code != http.StatusGatewayTimeout || a.status.Reason != "Timeout" || !strings.Contains(a.status.Message, "core tier") {
		t.Errorf("answer %+v", a)
	}
}

func TestLimitOfRequestsInFlight(t *testing.T) {
	release := make(chan struct{})
	var entered atomic.Int64
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			w.(http.Flusher).Flush()
		}
		entered.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	c := testConfig(b.url())
	c.MaxInFlight = 2
	f := startFront(t, startProxy(t, c))
	var wg sync.WaitGroup
	// Established watches do not count.
	ctx, cancel := context.WithCancel(t.Context())
	defer opened(t, f, ctx, "/api?watch=1").Close()
	for range 2 {
		wg.Go(func() {
			if a := f.get(t, "/api"); a.code != 200 {
				t.Errorf("answer %+v", a)
			}
		})
	}
	eventually(t, "three requests are in flight", func() bool { return entered.Load() == 3 })
	a := f.get(t, "/api")
	if a.code != http.StatusTooManyRequests || a.status.Reason != "TooManyRequests" || a.header.Get("Retry-After") != "1" {
		t.Errorf("answer %+v", a)
	}
	close(release)
	cancel()
	wg.Wait()
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("answer %+v", a)
	}
}
