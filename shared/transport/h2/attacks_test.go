package h2

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// verdict is the outcome of an attack. docs/http2.md lists it for both servers.
type verdict string

const (
	// ends: the server closes the connection.
	ends verdict = "ended"
	// refuses: the server refuses requests and keeps the connection.
	refuses verdict = "refused"
	// serves: the server serves the requests within the limits of memory.
	serves verdict = "served"
)

// attack is an attack by a client.
type attack struct {
	name string
	// handler serves all requests; nil answers immediately.
	handler http.Handler
	// deaf clients read nothing.
	deaf bool
	// settings are the SETTINGS of the client.
	settings []http2.Setting
	// first appends frames to send once, and each frames to send repeatedly, this many times or
	// until the connection ends.
	first func(p *peer, b []byte) []byte
	each  func(b []byte, i int) []byte
	times int
	// wantOurs and wantGo are the verdicts of both servers.
	wantOurs, wantGo verdict
	// perByte bounds the bytes that a server allocates per byte received, beyond 1 MiB and
	// including the client of the test. maxLive and maxLiveGo bound the live bytes after the
	// server has read everything.
	perByte            int
	maxLive, maxLiveGo int64
}

const mib = 1 << 20

// attacks returns one attack per class of published vulnerabilities of HTTP/2 servers.
func attacks(t *testing.T) []attack {
	park := newParked(t)
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for p := make([]byte, 32<<10); ; flush(w) {
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	})
	get := requestBlock(":method", "GET", ":scheme", "https", ":authority", "example.com", ":path", "/")
	malformed := requestBlock(":method", "GET", ":scheme", "https")
	open := func(b []byte, i int) []byte { return appendHeaders(b, uint32(2*i+1), get, true, 16<<10) }
	opened := func(n int) func(*peer, []byte) []byte {
		return func(_ *peer, b []byte) []byte {
			for i := range n {
				b = open(b, i)
			}
			return b
		}
	}
	post := func(_ *peer, b []byte) []byte { return appendHeaders(b, 1, get, false, 16<<10) }
	// named repeats the last entry of the dynamic table, one byte each, in a request that starts
	// with the field.
	named := func(name, value string, n int) []byte {
		first := literal(append([]byte(nil), get...), 0x40, name, value)
		return append(first, strings.Repeat("\xbe", n)...)
	}
	continued := func(block func(i int) []byte) func([]byte, int) []byte {
		return func(b []byte, i int) []byte {
			fragment := block(i)
			return append(appendFrameHeader(b, len(fragment), http2.FrameContinuation, 0, 1), fragment...)
		}
	}
	begun := func(_ *peer, b []byte) []byte {
		return append(appendFrameHeader(b, len(get), http2.FrameHeaders, http2.FlagHeadersEndStream, 1), get...)
	}
	many := func(block []byte) func([]byte, int) []byte {
		return func(b []byte, i int) []byte { return appendHeaders(b, uint32(2*i+1), block, true, 16<<10) }
	}
	return []attack{
		{name: "rapid reset", handler: park, times: 5000, wantOurs: ends, wantGo: ends,
			each: func(b []byte, i int) []byte { return appendReset(open(b, i), uint32(2*i+1), http2.ErrCodeCancel) }},
		{name: "resets by the server", handler: park, times: 200_000, wantOurs: ends, wantGo: ends,
			each: func(b []byte, i int) []byte { return appendWindowUpdate(open(b, i), uint32(2*i+1), maxWindow) }},
		{name: "reset flood", deaf: true, times: 200_000, wantOurs: ends, wantGo: ends, each: many(malformed), maxLive: 4 * mib, maxLiveGo: 16 * mib},
		{name: "ping flood", deaf: true, times: 500_000, wantOurs: ends, wantGo: ends,
			each: func(b []byte, _ int) []byte {
				return append(appendFrameHeader(b, 8, http2.FramePing, 0, 0), "attacked"...)
			}},
		{name: "settings flood", deaf: true, times: 500_000, wantOurs: ends, wantGo: serves,
			each: func(b []byte, _ int) []byte { return appendSettings(b) }},
		{name: "request flood", deaf: true, times: 200_000, wantOurs: ends, wantGo: ends, each: open},
		{name: "data dribble", handler: endless, settings: []http2.Setting{window(0)}, first: opened(100), times: 2000, wantOurs: serves, wantGo: serves,
			each: func(b []byte, i int) []byte { return appendWindowUpdate(b, uint32(2*(i%100)+1), 1) }, perByte: 100},
		{name: "windows that stay shut", handler: endless, settings: []http2.Setting{window(0)}, times: 100, wantOurs: serves, wantGo: serves, perByte: 5000, each: open},
		{name: "answers that are not read", handler: endless, deaf: true, settings: []http2.Setting{window(maxWindow)}, times: 100, wantOurs: serves, wantGo: serves,
			first: func(_ *peer, b []byte) []byte { return appendWindowUpdate(b, 0, maxWindow-defaultWindow) }, each: open, perByte: 5000},
		{name: "resource loop", handler: park, first: opened(100), times: 20_000, wantOurs: serves, wantGo: serves,
			each: func(b []byte, i int) []byte {
				id, on := uint32(2*(i%100)+1), uint32(2*((i+1+i/100)%100)+1)
				if id == on {
					on = 0
				}
				return append(appendFrameHeader(b, 5, http2.FramePriority, 0, id), 0x80, 0, 0, byte(on), 200)
			}},
		{name: "priorities of streams to come", times: 20_000, wantOurs: serves, wantGo: serves,
			each: func(b []byte, i int) []byte {
				return append(appendFrameHeader(b, 5, http2.FramePriority, 0, uint32(2*i+1)), 0, 0, 0, 0, 1)
			}},
		{name: "names of no length", times: 1000, wantOurs: refuses, wantGo: refuses,
			each: many(append(append([]byte(nil), get...), strings.Repeat("\x00\x00\x00", 200)...))},
		{name: "empty frames", first: post, handler: park, times: 100_000, wantOurs: serves, wantGo: serves,
			each: func(b []byte, _ int) []byte { return appendFrameHeader(b, 0, http2.FrameData, 0, 1) }},
		{name: "bodies byte by byte", first: post, handler: park, times: 100_000, wantOurs: serves, wantGo: serves,
			each: func(b []byte, _ int) []byte { return append(appendFrameHeader(b, 1, http2.FrameData, 0, 1), 'x') }},
		{name: "bodies that never come", handler: park, times: 100, wantOurs: serves, wantGo: serves, perByte: 1000,
			each: func(b []byte, i int) []byte { return appendHeaders(b, uint32(2*i+1), get, false, 16<<10) }},
		{name: "CONTINUATION flood", first: begun, times: 5000, wantOurs: ends, wantGo: ends,
			each: continued(func(i int) []byte { return literal(nil, 0, fmt.Sprint("x-", i), large(10_000)) })},
		{name: "empty CONTINUATION", first: begun, times: 50_000, wantOurs: serves, wantGo: serves, perByte: 50,
			each: continued(func(int) []byte { return nil })},
		{name: "a field in small frames", times: 12_499, wantOurs: serves, wantGo: serves, perByte: 50,
			first: func(_ *peer, b []byte) []byte {
				part := literal(append([]byte(nil), get...), 0, "x-long", large(100_000))[:len(get)+20]
				return append(appendFrameHeader(b, len(part), http2.FrameHeaders, http2.FlagHeadersEndStream, 1), part...)
			},
			each: continued(func(int) []byte { return []byte("01234567") })},
		{name: "HPACK bomb", times: 50, wantOurs: refuses, wantGo: refuses, perByte: 1500, each: many(named("x", large(4000), 4000))},
		{name: "cookies of one byte", handler: park, times: 100, wantOurs: refuses, wantGo: serves, perByte: 100_000,
			maxLive: 24 * mib, maxLiveGo: 200 * mib, each: many(named("cookie", large(4000), 250))},
		{name: "fields of one byte", handler: park, times: 100, wantOurs: refuses, wantGo: serves, perByte: 300,
			maxLive: 64 * mib, maxLiveGo: 400 * mib, each: many(named("x", "", 28_000))},
		{name: "announced trailers", handler: park, times: 20, wantOurs: refuses, wantGo: refuses, perByte: 100,
			each: many(literal(append([]byte(nil), get...), 0, "trailer", strings.Repeat("a,", 100_000)))},
		{name: "trailers of one byte", handler: park, times: 100, wantOurs: refuses, wantGo: serves, perByte: 300,
			maxLive: 16 * mib, maxLiveGo: 400 * mib, each: func(b []byte, i int) []byte {
				b = appendHeaders(b, uint32(2*i+1), literal(append([]byte(nil), get...), 0, "trailer", "x"), false, 16<<10)
				return appendHeaders(b, uint32(2*i+1), append(literal(nil, 0x40, "x", ""), strings.Repeat("\xbe", 28_000)...), true, 16<<10)
			}},
		{name: "long names", times: 100, wantOurs: serves, wantGo: serves, perByte: 20,
			each: func(b []byte, i int) []byte {
				return many(literal(append([]byte(nil), get...), 0, fmt.Sprint("x-", i, "-", large(10_000)), "1"))(b, i)
			}},
		{name: "changes of the initial window", handler: park, first: opened(100), times: 20_000, wantOurs: serves, wantGo: serves, perByte: 50,
			each: func(b []byte, i int) []byte { return appendSettings(b, window(uint32(i%2))) }},
		{name: "changes of the table", times: 5000, wantOurs: serves, wantGo: serves, perByte: 500,
			each: func(b []byte, i int) []byte {
				if b = appendSettings(b, http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i % 2 * 4096)}); i%50 == 0 {
					b = open(b, i/50)
				}
				return b
			}},
		{name: "unknown frames", times: 20_000, wantOurs: serves, wantGo: serves,
			each: func(b []byte, i int) []byte {
				return append(appendFrameHeader(b, 4, http2.FrameType(10+i%6), 0xff, uint32(i%9)), "what"...)
			}},
		{name: "a stream twice", handler: park, first: opened(1), times: 1, wantOurs: refuses, wantGo: refuses, each: open},
		{name: "GOAWAY flood", times: 20_000, wantOurs: ends, wantGo: ends, each: func(b []byte, _ int) []byte { return appendGoAway(b, 0, http2.ErrCodeNo, "") }},
	}
}

// kind starts a server of one kind, on a listener that l wraps.
type kind func(handler http.Handler, l *stuck) *httptest.Server

// Both servers have the expected verdict for each attack, use no more memory than allowed, and
// still serve another client.
func TestAttacks(t *testing.T) {
	for _, a := range attacks(t) {
		for name, serve := range map[string]kind{
			"ours": func(handler http.Handler, l *stuck) *httptest.Server {
				return newServer(handler, bounds, l.wrap)
			},
			"Go's": func(handler http.Handler, l *stuck) *httptest.Server {
				s := newGoServer(t, handler, bounds)
				s.Listener = l.wrap(s.Listener)
				return s
			},
		} {
			t.Run(a.name+"/"+name, func(t *testing.T) {
				want, maxLive := a.wantOurs, max(a.maxLive, 8*mib)
				if name == "Go's" {
					want, maxLive = a.wantGo, max(a.maxLiveGo, 8*mib)
				}
				got := a.try(t, want, serve)
				t.Logf("%s: %d bytes sent, %d allocated, %d live", got.verdict, got.sent, got.allocated, got.live)
				if got.verdict != want {
					t.Errorf("verdict %s, want %s", got.verdict, want)
				}
				if most := mib + int64(max(a.perByte, 60))*got.sent; got.allocated > most {
					t.Errorf("%d bytes that are sent cost %d, more than %d", got.sent, got.allocated, most)
				}
				if got.live > maxLive {
					t.Errorf("%d live bytes, more than %d", got.live, maxLive)
				}
			})
		}
	}
}

// docs/http2.md lists the verdict of each attack.
func TestAttackOutcomesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/http2.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attacks(t) {
		found := false
		for line := range strings.Lines(string(page)) {
			cells := strings.Split(strings.Trim(line, "| \n"), "|")
			if len(cells) != 5 || !strings.Contains(cells[2], "`TestAttacks/"+a.name+"`") {
				continue
			}
			found = true
			if !strings.HasPrefix(cells[3], " "+string(a.wantOurs)) || !strings.HasPrefix(cells[4], " "+string(a.wantGo)) {
				t.Errorf("%s is %s and %s, not as in %s", a.name, a.wantOurs, a.wantGo, line)
			}
		}
		if !found {
			t.Errorf("%s is not there", a.name)
		}
	}
}

// cost is the outcome of an attack and its cost.
type cost struct {
	verdict               verdict
	sent, allocated, live int64
}

// others is the path for another client's requests.
const others = "/others"

// try attacks a server.
func (a attack) try(t *testing.T, want verdict, serve kind) cost {
	t.Helper()
	l := &stuck{release: make(chan struct{}), first: true, over: make(chan struct{})}
	s := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != others && a.handler != nil {
			a.handler.ServeHTTP(w, r)
		}
	}), l)
	p := dial(t, start(t, s), a.settings...)
	p.ping()
	_ = p.conn.SetDeadline(time.Now().Add(5 * time.Minute)) // busy machines are slow
	l.now.Store(a.deaf)
	reader := &attackReader{answered: make(chan struct{})}
	if !a.deaf {
		go reader.listen(p)
	}
	var out []byte
	if a.first != nil {
		out = a.first(p, out)
	}
	before := memory()
	var got cost
	ended := false
	for i := 0; i <= a.times && !ended; i++ {
		if i < a.times {
			out = a.each(out, i)
		}
		if len(out) < 8<<10 && i < a.times {
			continue
		}
		n, err := p.conn.Write(out)
		got.sent += int64(n)
		if out = out[:0]; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("after %d bytes: %v", got.sent, err)
		}
		ended = err != nil
	}
	switch {
	case a.deaf && want == ends:
		within(t, l.over, "the connection is to end")
		ended = true
	case !a.deaf && !reader.reached(t, p, a):
		ended = true
	}
	after := memory()
	got.allocated, got.live = int64(after.TotalAlloc-before.TotalAlloc), int64(after.HeapAlloc)-int64(before.HeapAlloc)
	switch {
	case ended:
		got.verdict = ends
	case reader.refusals() > 0:
		got.verdict = refuses
	default:
		got.verdict = serves
	}
	res, err := s.Client().Get(s.URL + others)
	if err != nil {
		t.Fatalf("another client is not served: %v", err)
	}
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		t.Errorf("another client is served %s with %s", res.Status, res.Proto)
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
	_ = p.conn.NetConn().Close() // may be closed already
	return got
}

func memory() runtime.MemStats {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// attackReader records the frames that an attacker receives.
type attackReader struct {
	answered chan struct{} // closed when a ping is answered or the connection ends

	mu      sync.Mutex
	refused int  // requests; guarded by mu
	closed  bool // guarded by mu
}

// listen reads until the last ping is answered or the connection ends.
func (h *attackReader) listen(p *peer) {
	defer close(h.answered)
	for {
		f, err := p.framer.ReadFrame()
		h.mu.Lock()
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo {
				h.refused++
			}
		case *http2.HeadersFrame:
			// The status is the first field. Error statuses are fully indexed only for 400,
			// 404 and 500; other responses of these tests have 200.
			if block := f.HeaderBlockFragment(); len(block) > 0 && block[0] != 0x88 && block[0]&0xe0 != 0x20 {
				h.refused++
			}
		case *http2.GoAwayFrame:
			h.closed = true
		}
		if err != nil {
			h.closed = true
		}
		h.mu.Unlock()
		if ack, ok := f.(*http2.PingFrame); err != nil || ok && ack.IsAck() && ack.Data == lastPing {
			return
		}
	}
}

// reached waits until the server has read everything. It returns false if the server has closed the
// connection.
func (h *attackReader) reached(t *testing.T, p *peer, a attack) bool {
	t.Helper()
	if strings.Contains(a.name, "CONTINUATION") || strings.Contains(a.name, "in small frames") {
		if a.wantOurs == serves { // end the block before other frames
			_, _ = p.conn.Write(appendFrameHeader(nil, 0, http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1))
		}
	}
	_ = p.framer.WritePing(false, lastPing) // the connection may be closed
	select {
	case <-h.answered:
	case <-time.After(5 * time.Minute):
		t.Fatal("the server does not read what was sent")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.closed
}

func (h *attackReader) refusals() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused
}
