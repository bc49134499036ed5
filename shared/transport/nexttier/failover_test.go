package nexttier

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// load sends requests from several goroutines until stopped, and counts the results.
type load struct {
	ok, failed atomic.Int64
	stop       context.CancelFunc
	wg         sync.WaitGroup
}

func startLoad(t *testing.T, f *front, request func(ctx context.Context, n int64) *http.Request) *load {
	l := &load{}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	var n atomic.Int64
	for range 8 {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				a, err := f.try(request(t.Context(), n.Add(1)))
				if err == nil && a.code == http.StatusOK {
					l.ok.Add(1)
					continue
				}
				if l.failed.Add(1) <= 5 {
					t.Logf("failed: %v %d %s", err, a.code, a.body)
				}
			}
		})
	}
	return l
}

func (l *load) end() { l.stop(); l.wg.Wait() }

func (l *load) reached(t *testing.T, more int64) {
	t.Helper()
	goal := l.ok.Load() + more
	eventually(t, "enough requests answered", func() bool { return l.ok.Load() >= goal })
}

func TestReplicaKilledUnderLoadFailsNoIdempotentRequest(t *testing.T) {
	var hits [2]atomic.Int64
	var backends [2]*backend
	for i := range backends {
		backends[i] = startBackend(t, func(w http.ResponseWriter, _ *http.Request) { hits[i].Add(1); _, _ = io.WriteString(w, "ok") })
	}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	l := startLoad(t, f, func(ctx context.Context, n int64) *http.Request {
		req, _ := http.NewRequestWithContext(ctx, []string{"GET", "HEAD", "OPTIONS"}[n%3], f.URL+"/api/v1/pods", nil)
		return req
	})
	for round := range 6 {
		b := backends[round%2]
		l.reached(t, 300)
		b.kill()
		l.reached(t, 300)
		b.start()
		eventually(t, "killed replica is ready again", func() bool { return conditionOf(p, b.address) == ready })
	}
	l.end()
	if l.failed.Load() != 0 {
		t.Errorf("%d requests failed, %d did not", l.failed.Load(), l.ok.Load())
	}
	before := [2]int64{hits[0].Load(), hits[1].Load()}
	for range 20 {
		f.get(t, "/api/v1/pods")
	}
	for i := range hits {
		if hits[i].Load() == before[i] {
			t.Errorf("replica %d gets no requests though it is ready", i)
		}
	}
}

func TestDrainedReplicaFailsNoRequestAtAll(t *testing.T) {
	var mu sync.Mutex
	executed := map[string]int{}
	var backends [2]*backend
	for i := range backends {
		backends[i] = startBackend(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			mu.Lock()
			executed[string(body)]++
			mu.Unlock()
			_, _ = io.WriteString(w, "ok")
		})
	}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	l := startLoad(t, f, func(ctx context.Context, n int64) *http.Request {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+"/api/v1/pods", strings.NewReader(fmt.Sprintf("object %d", n)))
		return req
	})
	for round := range 4 {
		b := backends[round%2]
		l.reached(t, 300)
		b.drain()
		l.reached(t, 300)
		b.start()
		eventually(t, "drained replica is ready again", func() bool { return conditionOf(p, b.address) == ready })
	}
	l.end()
	if l.failed.Load() != 0 {
		t.Errorf("%d requests failed, %d did not", l.failed.Load(), l.ok.Load())
	}
	for body, n := range executed {
		if n != 1 {
			t.Errorf("%s was executed %d times", body, n)
		}
	}
}

func TestPostIsNeverExecutedTwice(t *testing.T) {
	var mu sync.Mutex
	executed := map[string]int{}
	var backends [2]*backend
	for i := range backends {
		backends[i] = startBackend(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // half a request is not processed
			}
			mu.Lock()
			executed[string(body)]++
			mu.Unlock()
			_, _ = io.WriteString(w, "ok")
		})
	}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	var mentions atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	var n, ok atomic.Int64
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/api/v1/pods", strings.NewReader(fmt.Sprintf("object %d", n.Add(1))))
				a, err := f.try(req)
				switch {
				case err != nil:
					t.Errorf("the front broke: %v", err)
				case a.code == http.StatusOK:
					ok.Add(1)
				case a.code != http.StatusServiceUnavailable || a.status.Reason != metav1.StatusReasonServiceUnavailable:
					t.Errorf("code %d: %s", a.code, a.body)
				case strings.Contains(a.status.Message, "may or may not"):
					mentions.Add(1)
					if a.header.Get("Retry-After") != "" {
						t.Error("a client would send it again")
					}
				}
			}
		})
	}
	for round := range 10 {
		b := backends[round%2]
		goal := ok.Load() + 100
		eventually(t, "requests answered", func() bool { return ok.Load() >= goal })
		b.kill()
		b.start()
	}
	stop()
	wg.Wait()
	for body, n := range executed {
		if n != 1 {
			t.Errorf("%s was executed %d times", body, n)
		}
	}
	t.Logf("%d answered, %d left in doubt", ok.Load(), mentions.Load())
}

// breaking reads the request and then breaks the connection without an answer.
func breaking(n *atomic.Int64) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n.Add(1)
		panic(http.ErrAbortHandler)
	}
}

func TestBrokenBeforeTheHeader(t *testing.T) {
	var broken, healthy atomic.Int64
	bad := startBackend(t, breaking(&broken))
	t.Run("a safe request is sent again, and names the tier in the end", func(t *testing.T) {
		broken.Store(0)
		f := startFront(t, startProxy(t, testConfig(bad.url())))
		a := f.get(t, "/api/v1/pods")
		if a.code != 503 || a.status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(a.status.Message, "core tier") || a.header.Get("Retry-After") != "1" {
			t.Errorf("answer %+v", a)
		}
		if broken.Load() != maxAttempts {
			t.Errorf("sent %d times", broken.Load())
		}
	})
	t.Run("an unsafe one is not, and its client is not told to repeat it", func(t *testing.T) {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			broken.Store(0)
			f := startFront(t, startProxy(t, testConfig(bad.url())))
			a := f.do(t, f.request(t, method, "/api/v1/pods", strings.NewReader("{}")))
			if a.code != 503 || a.status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(a.status.Message, "core tier") || a.header.Get("Retry-After") != "" || a.status.Details != nil {
				t.Errorf("%s: answer %+v", method, a)
			}
			if broken.Load() != 1 {
				t.Errorf("%s: sent %d times", method, broken.Load())
			}
		}
	})
	t.Run("a safe one finds the replica that works", func(t *testing.T) {
		good := startBackend(t, func(w http.ResponseWriter, _ *http.Request) { healthy.Add(1); _, _ = io.WriteString(w, "ok") })
		f := startFront(t, startProxy(t, testConfig(bad.url(), good.url())))
		for range 20 {
			if a := f.get(t, "/api/v1/pods"); a.code != 200 {
				t.Errorf("answer %+v", a)
			}
		}
	})
}

func TestBrokenInTheBodyBreaksTheClientsBody(t *testing.T) {
	for _, path := range []string{"/api/v1/pods", "/api/v1/pods?watch=1"} {
		t.Run(path, func(t *testing.T) {
			b := startBackend(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half of")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			})
			f := startFront(t, startProxy(t, testConfig(b.url())))
			if a, err := f.try(f.request(t, http.MethodGet, path, nil)); err == nil {
				t.Errorf("the client took %q for the whole", a.body)
			}
		})
	}
}

// unavailable checks the answer of a proxy without available replicas, and its duration.
func unavailable(t *testing.T, f *front, method string) {
	t.Helper()
	start := time.Now()
	a := f.do(t, f.request(t, method, "/api/v1/pods", nil))
	if took := time.Since(start); took > time.Second {
		t.Errorf("answered after %v", took)
	}
	want := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 503, Reason: metav1.StatusReasonServiceUnavailable,
		Message: "the core tier is not available", Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
	}
	if a.code != 503 || a.header.Get("Retry-After") != "1" || a.header.Get("Content-Type") != "application/json" || a.status.String() != want.String() {
		t.Errorf("answer %+v", a)
	}
}

func TestUnavailableWithinASecond(t *testing.T) {
	// Two addresses that accept connections and never send anything.
	var silent []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		silent = append(silent, "https://"+l.Addr().String())
	}
	refusing := startBackend(t, reply("x"))
	refusing.kill()
	foreign := startBackend(t, reply("x"))
	foreign.kill()
	cert, err := otherPKI.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	foreign.tls.Certificates = []tls.Certificate{cert}
	foreign.start()

	cases := map[string][]string{
		"connection refused":            {refusing.url()},
		"certificate of another CA":     {foreign.url()},
		"silent":                        silent[:1],
		"three that are silent":         silent,
		"name that cannot be looked up": {"https://nowhere.invalid:6443"},
	}
	for name, targets := range cases {
		t.Run(name, func(t *testing.T) {
			c := testConfig(targets...)
			c.Resolver = fakeResolver{}
			p := startProxy(t, c)
			f := startFront(t, p)
			for range 2 {
				unavailable(t, f, http.MethodGet)
				unavailable(t, f, http.MethodPost)
			}
			if p.Check(nil) == nil {
				t.Error("the health check says that the tier can be reached")
			}
			// The same for an upgrade.
			res := rawUpgrade(t, f, "/api/v1/namespaces/n/pods/p/exec", "SPDY/3.1")
			defer res.Body.Close()
			if res.StatusCode != 503 {
				t.Errorf("upgrade: code %d", res.StatusCode)
			}
		})
	}
}

func TestRecoveredTierIsUsedImmediately(t *testing.T) {
	b := startBackend(t, reply("ok"))
	p := startProxy(t, testConfig(b.url()))
	f := startFront(t, p)
	eventually(t, "health check passes", func() bool { return p.Check(nil) == nil })
	b.kill()
	unavailable(t, f, http.MethodGet)
	eventually(t, "health check fails", func() bool { return p.Check(nil) != nil })
	b.start()
	// A replica that is down is tried if there is no other.
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("answer %+v", a)
	}
	eventually(t, "health check passes", func() bool { return p.Check(nil) == nil })
}

// fakeResolver resolves the names in its map.
type fakeResolver map[string]func() []string

func (r fakeResolver) LookupHost(_ context.Context, host string) ([]string, error) {
	if f, ok := r[host]; ok {
		return f(), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func TestReplicasAreResolvedAgain(t *testing.T) {
	hits := map[string]*atomic.Int64{}
	// Two replicas with the same port, like the Pods of a headless Service.
	first := startBackend(t, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(first.address)
	first.kill()
	var replicas []*backend
	for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		hit := new(atomic.Int64)
		hits[ip] = hit
		b := startBackend(t, func(w http.ResponseWriter, r *http.Request) { hit.Add(1); _, _ = io.WriteString(w, r.Host) })
		b.kill()
		b.address = net.JoinHostPort(ip, port)
		b.start()
		replicas = append(replicas, b)
	}
	var addresses atomic.Pointer[[]string]
	addresses.Store(&[]string{"127.0.0.1", "127.0.0.2"})
	c := testConfig("https://replicas.example.test:" + port)
	c.Resolver = fakeResolver{"replicas.example.test": func() []string { return *addresses.Load() }}
	c.ResolveInterval = 20 * time.Millisecond
	p := startProxy(t, c)
	f := startFront(t, p)
	spread := func() (used []string) {
		before := map[string]int64{}
		for ip, n := range hits {
			before[ip] = n.Load()
		}
		for range 20 {
			if a := f.get(t, "/api"); a.code != 200 || a.body != "replicas.example.test:"+port {
				t.Errorf("answer %+v", a)
			}
		}
		for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
			if hits[ip].Load() > before[ip] {
				used = append(used, ip)
			}
		}
		return used
	}
	if got := strings.Join(spread(), " "); got != "127.0.0.1 127.0.0.2" {
		t.Errorf("requests went to %s", got)
	}
	addresses.Store(&[]string{"127.0.0.2", "127.0.0.3", "not an address"})
	eventually(t, "the new replica is found", func() bool { return conditionOf(p, replicas[2].address) == ready })
	if got := strings.Join(spread(), " "); got != "127.0.0.2 127.0.0.3" {
		t.Errorf("requests went to %s", got)
	}
	remaining := (*p.replicas.Load())[0]
	addresses.Store(&[]string{})
	eventually(t, "no replica is left", func() bool { return len(*p.replicas.Load()) == 0 })
	addresses.Store(&[]string{"127.0.0.2"})
	if got := strings.Join(spread(), " "); got != "127.0.0.2" {
		t.Errorf("requests went to %s", got)
	}
	if remaining.pools[short].size() != 0 {
		t.Error("a replica that is gone keeps connections")
	}
}

func TestUnreadyReplicaIsTheLastResort(t *testing.T) {
	var hits [2]atomic.Int64
	var unreadyProbes atomic.Bool
	var backends [2]*backend
	for i := range backends {
		backends[i] = startBackend(t, func(w http.ResponseWriter, _ *http.Request) { hits[i].Add(1); _, _ = io.WriteString(w, "ok") })
	}
	backends[0].probes = func(w http.ResponseWriter, _ *http.Request) {
		if unreadyProbes.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	unreadyProbes.Store(true)
	eventually(t, "unready", func() bool { return conditionOf(p, backends[0].address) == unready })
	before := hits[0].Load()
	for range 10 {
		f.get(t, "/api")
	}
	if hits[0].Load() != before {
		t.Error("an unready replica got requests though another one was ready")
	}
	backends[1].kill()
	eventually(t, "down", func() bool { return conditionOf(p, backends[1].address) == down })
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("an unready replica was refused: %+v", a)
	}
	if err := p.Check(nil); err != nil {
		t.Errorf("the tier can be reached, but: %v", err)
	}
	unreadyProbes.Store(false)
	eventually(t, "ready", func() bool { return conditionOf(p, backends[0].address) == ready })
}

func TestChoose(t *testing.T) {
	cases := []struct {
		name       string
		candidates []candidate
		start      int
		want       int
	}{
		{"none", nil, 3, -1},
		{"all refused", []candidate{{unreachable: true}, {unreachable: true}}, 0, -1},
		{"in turn", []candidate{{}, {}, {}}, 4, 1},
		{"least in flight", []candidate{{inFlight: 3}, {inFlight: 1}, {inFlight: 2}}, 0, 1},
		{"ready before idle", []candidate{{condition: unready}, {inFlight: 9}}, 0, 1},
		{"unready before down", []candidate{{condition: down}, {condition: unready, inFlight: 9}}, 0, 1},
		{"down rather than none", []candidate{{condition: down}, {unreachable: true}}, 1, 0},
		{"not yet tried before ready", []candidate{{attempts: 1}, {condition: down}}, 0, 1},
		{"tried rather than refused", []candidate{{attempts: 1}, {unreachable: true}}, 1, 0},
		{"trusting before idle", []candidate{{distrusts: true}, {inFlight: 9}}, 0, 1},
	}
	for _, c := range cases {
		if got := choose(c.candidates, c.start); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// rawServer sends HTTP/2 frame by frame, to fail at certain points.
func rawServer(t *testing.T, serve func(framer *http2.Framer, streamID uint32)) string {
	t.Helper()
	cert, err := testPKI.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = l.Close() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				framer := http2.NewFramer(conn, conn)
				if framer.WriteSettings() != nil {
					return
				}
				for {
					frame, err := framer.ReadFrame()
					if err != nil {
						return
					}
					switch f := frame.(type) {
					case *http2.SettingsFrame:
						if !f.IsAck() {
							_ = framer.WriteSettingsAck()
						}
					case *http2.HeadersFrame:
						serve(framer, f.StreamID)
					}
				}
			})
		}
	})
	return "https://" + l.Addr().String()
}

func respond(framer *http2.Framer, streamID uint32, code string) {
	var block strings.Builder
	_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: code})
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true})
}

// net/http identifies unprocessed requests only by the texts of its errors, so the test compares them
// with its actual errors.
func TestUnprocessedRequestsAreRetried(t *testing.T) {
	refuse := map[string]func(framer *http2.Framer, id uint32){
		"REFUSED_STREAM": func(framer *http2.Framer, id uint32) { _ = framer.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"GOAWAY": func(framer *http2.Framer, id uint32) {
			_ = framer.WriteGoAway(id-1, http2.ErrCodeNo, nil)
		},
	}
	for name, refuse := range refuse {
		t.Run(name, func(t *testing.T) {
			var streams atomic.Int64
			target := rawServer(t, func(framer *http2.Framer, id uint32) {
				if streams.Add(1) == 1 {
					refuse(framer, id)
					return
				}
				respond(framer, id, "200")
				_ = framer.WriteRSTStream(id, http2.ErrCodeNo) // the rest is not needed
			})
			// Do not run it: a probe would take the first stream.
			p, err := New(testConfig(target))
			if err != nil {
				t.Fatal(err)
			}
			defer p.goroutines.Wait()
			defer p.shutdown()
			f := startFront(t, p)
			a := f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader(strings.Repeat("x", replayLimit))))
			if a.code != http.StatusOK || streams.Load() != 2 {
				t.Errorf("answer %+v after %d streams", a, streams.Load())
			}
			// A body beyond the replay limit is not sent again; the client may do so.
			streams.Store(0)
			a = f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader(strings.Repeat("x", 4<<20))))
			switch {
			case a.code == http.StatusOK && streams.Load() == 2: // no part of it had been read
			case a.code == 503 && a.header.Get("Retry-After") == "1" && streams.Load() == 1:
			default:
				t.Errorf("answer %+v after %d streams", a, streams.Load())
			}
		})
	}
	t.Run("other errors prove nothing", func(t *testing.T) {
		for _, err := range []error{
			io.ErrUnexpectedEOF, http2.StreamError{StreamID: 1, Code: http2.ErrCodeInternal}, http2.StreamError{Code: http2.ErrCodeCancel},
			errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1"),
		} {
			if isUnprocessed(err) {
				t.Errorf("%v counts as unprocessed", err)
			}
		}
	})
}

func TestServerThatRefusesEveryStream(t *testing.T) {
	var streams atomic.Int64
	target := rawServer(t, func(framer *http2.Framer, id uint32) {
		streams.Add(1)
		_ = framer.WriteRSTStream(id, http2.ErrCodeRefusedStream)
	})
	p, err := New(testConfig(target))
	if err != nil {
		t.Fatal(err)
	}
	defer p.goroutines.Wait()
	defer p.shutdown()
	unavailable(t, startFront(t, p), http.MethodPost)
	if streams.Load() != maxRefusals {
		t.Errorf("sent %d times", streams.Load())
	}
}
