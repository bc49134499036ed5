package nexttier

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// neighbourhood is a proxy with connections that alice and mallory share.
type neighbourhood struct {
	t              *testing.T
	alice, mallory *front
	// opened counts the connections to the replica.
	opened atomic.Int64
	// misbehave serves mallory's requests.
	misbehave http.HandlerFunc
	// alice's requests wait for stay. Handlers that ignore their context wait for stuck, and
	// entered counts them.
	stay, stuck chan struct{}
	entered     atomic.Int64
	waiting     atomic.Int64
}

func newNeighbourhood(t *testing.T, ours bool) *neighbourhood {
	n := &neighbourhood{t: t, stay: make(chan struct{}), stuck: make(chan struct{})}
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if u, _ := apirequest.UserFrom(r.Context()); u.GetName() == "mallory" {
			n.misbehave(w, r)
			return
		}
		if r.URL.RawQuery != "" {
			w.(http.Flusher).Flush()
		}
		if strings.HasSuffix(r.URL.Path, "/stay") {
			n.waiting.Add(1)
			<-n.stay
		}
		_, _ = io.Copy(w, r.Body)
	}, func(b *backend) {
		b.ours = ours
		b.accepted = func() { n.opened.Add(1) }
	})
	p := startProxy(t, testConfig(b.url()))
	n.alice, n.mallory = startFront(t, p), startFront(t, p, as(newUser("mallory")))
	return n
}

// ask sends a request of mallory, which may fail in any way.
func (n *neighbourhood) ask(method, path string, header http.Header, body io.Reader) {
	req := n.mallory.request(n.t, method, path, body)
	for name, values := range header {
		req.Header[name] = values
	}
	_, _ = n.mallory.try(req)
}

// leave starts requests whose handlers ignore the disconnect of their client, and disconnects.
func (n *neighbourhood) leave(count int, path string) {
	var wg sync.WaitGroup
	for range count {
		ctx, cancel := context.WithCancel(n.t.Context())
		before := n.entered.Load()
		wg.Go(func() {
			_, _ = n.mallory.try(n.mallory.request(n.t, http.MethodGet, path, nil).WithContext(ctx))
		})
		eventually(n.t, "a request has come", func() bool { return n.entered.Load() > before })
		cancel()
		wg.Wait()
	}
}

// Whatever a client sends and receives, the requests of others on the same connections continue, and
// no connection is closed. Only for mass resets of streams, a few connections are replaced.
func TestClientsAreIsolated(t *testing.T) {
	// More than the streams of all connections.
	const departures = (shortConnections + 1) * assumedMaxStreams
	// More than the header limits of shortConnections, 8 MiB each.
	const longRequests = 40
	long := http.Header{}
	for i := range 20_000 {
		long[fmt.Sprintf("X-%d", i)] = []string{""}
	}
	answer := func(f func(h http.Header)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { f(w.Header()); _, _ = io.WriteString(w, "answer") }
	}
	fine := answer(func(http.Header) {})
	stay := func(n *neighbourhood) http.HandlerFunc {
		return func(_ http.ResponseWriter, _ *http.Request) { n.entered.Add(1); <-n.stuck }
	}
	http1 := func(text string) func(n *neighbourhood) {
		return func(n *neighbourhood) {
			for range 20 {
				if res, err := http.ReadResponse(sendHTTP1(n.t, n.mallory, text), nil); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			}
		}
	}
	for name, test := range map[string]struct {
		behave http.HandlerFunc
		stays  bool
		attack func(n *neighbourhood)
		// replaced bounds the number of replaced connections.
		replaced int64
		// own is for attacks that only package h2 withstands.
		own bool
	}{
		"Connection: close":                {behave: fine, attack: http1("GET /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")},
		"Connection: close, x-remote-user": {behave: fine, attack: http1("GET /api HTTP/1.1\r\nHost: x\r\nConnection: close, X-Remote-User\r\n\r\n")},
		"HTTP/1.0":                         {behave: fine, attack: http1("GET /api HTTP/1.0\r\n\r\n")},
		"CONNECT":                          {behave: fine, attack: http1("CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n")},
		"OPTIONS *":                        {behave: fine, attack: http1("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")},
		"absolute form":                    {behave: fine, attack: http1("GET http://y/api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")},
		"odd method":                       {behave: fine, attack: http1("!#$ /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")},
		"headers of HTTP/2":                {behave: fine, attack: http1("GET /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\nHttp2-Settings: x\r\nUpgrade: h2c\r\nKeep-Alive: 1\r\nProxy-Connection: x\r\nTe: gzip\r\n\r\n")},
		"odd trailers":                     {behave: fine, attack: http1("POST /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length, X-A, :path\r\n\r\n1\r\nx\r\n0\r\nContent-Length: 5\r\nX-A: \x01\r\n\r\n")},
		"body breaks off": {behave: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, attack: func(n *neighbourhood) {
			for range maxResetStreams / 2 {
				reader, writer := io.Pipe()
				go func() { _, _ = io.WriteString(writer, "half"); _ = writer.CloseWithError(io.ErrUnexpectedEOF) }()
				n.ask(http.MethodPost, "/api", nil, reader)
			}
		}},
		"body is not read": {behave: func(http.ResponseWriter, *http.Request) {}, attack: func(n *neighbourhood) {
			for range 20 {
				n.ask(http.MethodPost, "/api", nil, bytes.NewReader(make([]byte, 4<<20)))
			}
		}},
		"long headers over HTTP/2": {behave: fine, attack: func(n *neighbourhood) {
			n.ask(http.MethodGet, "/api", http.Header{"X-Long": {strings.Repeat("x", 1000<<10)}}, nil)
		}},
		"many headers over HTTP/1.1": {behave: fine, attack: func(n *neighbourhood) {
			var text strings.Builder
			_ = long.Write(&text)
			http1("GET /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + strings.Repeat(text.String(), 3) + "\r\n")(n)
		}},
		"odd answers": {behave: answer(func(h http.Header) {
			h["bad name"], h["X-Bad"], h["Trailer"], h["Te"], h[":status"] = []string{"x"}, []string{"\x01\r\n"}, []string{"Content-Length, :x"}, []string{"x"}, []string{"x"}
			h["Content-Length"] = []string{"3"}
		}), attack: func(n *neighbourhood) {
			for range maxResetStreams / 2 {
				n.ask(http.MethodGet, "/api", nil, nil)
			}
		}},
		"long answers": {own: true, behave: answer(func(h http.Header) {
			for i := range 100 {
				h[fmt.Sprintf("X-%d", i)] = []string{strings.Repeat("x", 400<<10)}
			}
		}), attack: func(n *neighbourhood) {
			n.ask(http.MethodGet, "/api", nil, nil)
			n.ask(http.MethodGet, "/api?watch=1", nil, nil)
		}},
		"long answers at once": {behave: answer(func(h http.Header) {
			for i := range 3 {
				h[fmt.Sprintf("X-%d", i)] = []string{strings.Repeat("x", 250<<10)}
			}
		}), attack: func(n *neighbourhood) {
			var wg sync.WaitGroup
			for i := range 24 {
				wg.Go(func() { n.ask(http.MethodGet, []string{"/api", "/api?watch=1"}[i%2], nil, nil) })
			}
			wg.Wait()
		}},
		"long requests stay": {stays: true, replaced: 2 * longRequests, attack: func(n *neighbourhood) {
			for i := range 2 * longRequests {
				go n.ask(http.MethodGet, []string{"/api", "/api?watch=1"}[i%2], http.Header{"X-Long": {strings.Repeat("x", 1000<<10)}}, nil)
			}
			eventually(n.t, "long requests are under way", func() bool { return n.entered.Load() == 2*longRequests })
			_ = opened(n.t, n.alice, n.t.Context(), "/api?watch=1").Close()
		}},
		"many interim answers": {behave: func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				w.WriteHeader(http.StatusEarlyHints)
			}
		}, attack: func(n *neighbourhood) { n.ask(http.MethodGet, "/api", nil, nil) }},
		"handlers panic": {behave: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, attack: func(n *neighbourhood) {
			for range maxResetStreams / 2 {
				n.ask(http.MethodPost, "/api", nil, nil)
			}
		}},
		"clients leave": {stays: true, replaced: departures / maxResetStreams, attack: func(n *neighbourhood) { n.leave(departures, "/api") }},
		"watches leave": {stays: true, replaced: departures / maxResetStreams, attack: func(n *neighbourhood) { n.leave(departures, "/api?watch=1") }},
		"answers are not read": {behave: func(w http.ResponseWriter, _ *http.Request) {
			for range 64 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		}, attack: func(n *neighbourhood) {
			for range 20 {
				sendHTTP1(n.t, n.mallory, "GET /api HTTP/1.1\r\nHost: x\r\n\r\n")
			}
		}},
	} {
		for _, ours := range []bool{true, false} {
			if test.own && !ours {
				continue
			}
			t.Run(fmt.Sprintf("%s/ours=%v", name, ours), func(t *testing.T) {
				n := newNeighbourhood(t, ours)
				defer close(n.stuck)
				n.misbehave = test.behave
				if test.stays {
					n.misbehave = stay(n)
				}
				// Enough for all connections.
				const requests = 3 * shortConnections
				codes := make(chan int, requests)
				for range requests {
					go func() {
						a, err := n.alice.try(n.alice.request(t, http.MethodPost, "/stay", strings.NewReader("x")))
						if err != nil || a.body != "x" {
							a.code = -1
						}
						codes <- a.code
					}()
				}
				watch := opened(t, n.alice, t.Context(), "/api/stay?watch=1")
				eventually(t, "requests of others are under way", func() bool { return n.waiting.Load() == requests+1 })
				eventually(t, "all connections are open", func() bool { return n.opened.Load() == shortConnections+1 })
				test.attack(n)
				for range 20 {
					if a := n.alice.do(t, n.alice.request(t, http.MethodPost, "/api", strings.NewReader("x"))); a.code != http.StatusOK || a.body != "x" {
						t.Errorf("a new request of others: answer %d %s", a.code, a.body)
					}
				}
				close(n.stay)
				for range requests {
					if code := <-codes; code != http.StatusOK {
						t.Errorf("a request of others: answer %d", code)
					}
				}
				if _, err := io.ReadAll(watch); err != nil {
					t.Errorf("a watch of others: %v", err)
				}
				if more := n.opened.Load() - shortConnections - 1; more > test.replaced {
					t.Errorf("%d connections were replaced", more)
				}
			})
		}
	}
}

// Headers that are too long for the next tier result in 431, as they would over HTTP/2 without the
// proxy, even if only HTTP/1.1 or the added identity makes the difference.
func TestLongHeadersAre431(t *testing.T) {
	b := startBackend(t, reply("ok"))
	p := startProxy(t, testConfig(b.url()))
	f := startFront(t, p)
	var many strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&many, "X-%d:\r\n", i)
	}
	wordy := startFront(t, p, as(&user.DefaultInfo{Name: "wordy", Extra: map[string][]string{"x": {strings.Repeat("x", 100<<10)}}}))
	for name, test := range map[string]struct {
		f    *front
		text string
		want int
	}{
		"few":           {f, "X-1: 1\r\n", http.StatusOK},
		"many":          {f, many.String(), http.StatusRequestHeaderFieldsTooLarge},
		"long":          {f, "X-1: " + strings.Repeat("x", 1000<<10) + "\r\n", http.StatusOK},
		"with identity": {wordy, "X-1: " + strings.Repeat("x", 1000<<10) + "\r\n", http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := http.ReadResponse(sendHTTP1(t, test.f, "POST /api HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"+test.text+"\r\n"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != test.want {
				t.Errorf("answer %v", res.Status)
			}
		})
	}
}

// Earlier releases close a connection after each answer to an unauthenticated client.
func TestFrequentGoAways(t *testing.T) {
	var streams atomic.Int64
	target := rawServer(t, func(framer *http2.Framer, id uint32) {
		if streams.Add(1)%maxRefusals != 0 {
			_ = framer.WriteGoAway(id-1, http2.ErrCodeNo, nil)
			return
		}
		respond(framer, id, "200")
		_ = framer.WriteRSTStream(id, http2.ErrCodeNo)
	})
	p, err := New(testConfig(target))
	if err != nil {
		t.Fatal(err)
	}
	defer p.goroutines.Wait()
	defer p.shutdown()
	f := startFront(t, p)
	for range 10 {
		if a := f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader("{}"))); a.code != http.StatusOK {
			t.Errorf("answer %d %s", a.code, a.body)
		}
	}
}
