package h2

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// parked is a handler that counts its running calls and ends only on request.
type parked struct {
	running, most, all atomic.Int64
	free               chan struct{}
}

func newParked(t *testing.T) *parked {
	p := &parked{free: make(chan struct{})}
	t.Cleanup(func() { close(p.free) })
	return p
}

func (p *parked) ServeHTTP(http.ResponseWriter, *http.Request) {
	p.all.Add(1)
	n := p.running.Add(1)
	defer p.running.Add(-1)
	for most := p.most.Load(); n > most && !p.most.CompareAndSwap(most, n); most = p.most.Load() {
	}
	<-p.free
}

// CVE-2023-44487: opening and resetting streams does not increase the number of handlers.
func TestRapidResetIsBounded(t *testing.T) {
	handler := newParked(t)
	o := bounds
	o.MaxConcurrentStreams = 10
	p := dial(t, start(t, newServer(handler, o, nil)))
	const streams = 10 + 4*10
	for i := range uint32(streams) {
		p.get(2*i+1, "/")
		p.ok(p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	p.ping() // the allowed number
	p.get(2*streams+1, "/")
	p.wantGoAway(http2.ErrCodeEnhanceYourCalm)
	p.wantClosed()
	if n := handler.most.Load(); n > 10 {
		t.Errorf("%d handlers at once", n)
	}
}

// A request that was reset while queued retains no memory.
func TestQueuedResetRequestsAreSmall(t *testing.T) {
	handler := newParked(t)
	o := bounds
	o.MaxConcurrentStreams = 10
	p := dial(t, start(t, newServer(handler, o, nil)))
	heap := func() int64 {
		p.ping()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const size, streams = 14_000, 5 * 10
	for i := range uint32(streams) {
		var fields []string
		for j := range 20 {
			fields = append(fields, fmt.Sprint("x-", i, "-", j), large(size))
		}
		block := p.fields(append([]string{":method", "GET", ":scheme", "https", ":path", "/"}, fields...)...)
		p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block[:10_000], EndStream: true}))
		for block = block[10_000:]; len(block) > 0; {
			n := min(len(block), 10_000)
			p.ok(p.framer.WriteContinuation(2*i+1, n == len(block), block[:n]))
			block = block[n:]
		}
		p.ok(p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	// Ten requests are running.
	if grown := heap() - before; grown > 20*20*size {
		t.Errorf("%d requests of %d bytes that were reset take %d", streams, 20*size, grown)
	}
}

// CVE-2025-8671: the same if the client makes the server reset the streams.
func TestResetsByTheServerAreBounded(t *testing.T) {
	handler := newParked(t)
	o := bounds
	o.MaxConcurrentStreams = 10
	p := dial(t, start(t, newServer(handler, o, nil)))
	for i := range uint32(60) {
		p.get(2*i+1, "/")
		if p.framer.WriteWindowUpdate(2*i+1, maxWindow) != nil {
			break // closed already
		}
	}
	p.wantGoAway(http2.ErrCodeEnhanceYourCalm)
	if n := handler.most.Load(); n > 10 {
		t.Errorf("%d handlers at once", n)
	}
}

// Queued requests are served when handlers end, except for those that were reset.
func TestQueuedRequestsAreServed(t *testing.T) {
	o := bounds
	o.MaxConcurrentStreams = 2
	release := make(chan struct{})
	var slow, skipped atomic.Int64
	p := dial(t, start(t, newServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			slow.Add(1)
			<-release
		case "/reset":
			skipped.Add(1)
		}
	}), o, nil)))
	for _, id := range []uint32{1, 3} {
		p.get(id, "/slow")
		p.ok(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	for _, id := range []uint32{5, 7} {
		p.get(id, "/reset")
		p.ok(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	p.get(9, "/")
	p.get(11, "/")
	p.ping()
	close(release)
	got := map[uint32]*answer{9: {}, 11: {}}
	p.read(got, func() bool { return got[9].ended && got[11].ended })
	if slow.Load() != 2 || skipped.Load() != 0 {
		t.Errorf("%d and %d handlers, want 2 and 0", slow.Load(), skipped.Load())
	}
}

// RFC 9113, section 5.1.2.
func TestMoreStreamsThanAllowedAreRefused(t *testing.T) {
	o := bounds
	o.MaxConcurrentStreams = 3
	p := dial(t, start(t, newServer(blocking(t), o, nil)))
	for _, id := range []uint32{1, 3, 5} {
		p.get(id, "/")
	}
	p.get(7, "/")
	p.wantReset(7, http2.ErrCodeRefusedStream)
	p.ok(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
	p.get(9, "/") // a stream is free again
	p.get(11, "/")
	p.wantReset(11, http2.ErrCodeRefusedStream)
}

// stuck is a listener whose connections stop writing on request, as if the client did not read.
type stuck struct {
	net.Listener
	now     atomic.Bool
	release chan struct{}
	first   bool // only the first connection is stuck
	others  atomic.Bool
	over    chan struct{} // closed with the connection; may be nil
}

func (l *stuck) wrap(below net.Listener) net.Listener {
	l.Listener = below
	return l
}

func (l *stuck) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.first && l.others.Swap(true) {
		return c, nil
	}
	return &stuckConn{Conn: c, l: l, closed: make(chan struct{})}, nil
}

type stuckConn struct {
	net.Conn
	l      *stuck
	closed chan struct{}
	once   sync.Once
	ended  sync.Once
}

func (c *stuckConn) Write(p []byte) (int, error) {
	if c.l.now.Load() {
		select {
		case <-c.closed:
			return 0, net.ErrClosed
		case <-c.l.release:
		}
	}
	return c.Conn.Write(p)
}

// SetWriteDeadline ends a stuck write immediately.
func (c *stuckConn) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && c.l.now.Load() {
		c.once.Do(func() { close(c.closed) })
	}
	return c.Conn.SetWriteDeadline(t)
}

func (c *stuckConn) Close() error {
	if c.l.over != nil {
		c.ended.Do(func() { close(c.l.over) })
	}
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// connectStalled connects a client that stops reading.
func connectStalled(t *testing.T, handler http.Handler) *peer {
	t.Helper()
	l := &stuck{release: make(chan struct{})}
	p := dial(t, start(t, newServer(handler, bounds, l.wrap)))
	p.ping()
	l.now.Store(true)
	return p
}

// flood sends until the server closes the connection, at most limit times.
func flood(t *testing.T, p *peer, limit int, send func(i int) error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range limit {
		if err := send(i); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection has not ended after %d frames", i)
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("the heap has grown by %d MiB", grown>>20)
			}
			return
		}
	}
	t.Errorf("%d frames are taken", limit)
}

// CVE-2019-9512, CVE-2019-9514, CVE-2019-9515 and CVE-2019-9517: a client that requests replies
// without reading them is disconnected.
func TestControlFrameFloodsAreBounded(t *testing.T) {
	const limit = 2_000_000
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	t.Run("ping", func(t *testing.T) {
		p := connectStalled(t, empty)
		flood(t, p, limit, func(int) error { return p.framer.WritePing(false, [8]byte{}) })
	})
	t.Run("settings", func(t *testing.T) {
		p := connectStalled(t, empty)
		flood(t, p, limit, func(int) error { return p.framer.WriteSettings() })
	})
	t.Run("requests", func(t *testing.T) {
		p := connectStalled(t, empty)
		block := p.fields(":method", "GET", ":scheme", "https", ":path", "/")
		flood(t, p, limit, func(i int) error {
			return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block, EndHeaders: true, EndStream: true})
		})
	})
	t.Run("malformed requests", func(t *testing.T) {
		p := connectStalled(t, empty)
		block := p.fields(":method", "GET", ":scheme", "https")
		flood(t, p, limit, func(i int) error {
			return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block, EndHeaders: true, EndStream: true})
		})
	})
}

// The memory of a body that arrives byte by byte is proportional to its size.
func TestBodiesOfManyFramesAreSmall(t *testing.T) {
	p := dial(t, startOurs(t, blocking(t)))
	p.open(1, "POST", "/", false)
	heap := func() int64 {
		p.ping()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	one := []byte("x")
	for range 200_000 {
		p.ok(p.framer.WriteData(1, false, one))
	}
	if grown := heap() - before; grown > 2<<20 {
		t.Errorf("200000 bytes take %d", grown)
	}
}

// Responses are bounded: a handler blocks if the client does not read.
func TestUnreadResponsesAreBounded(t *testing.T) {
	const streams = 50
	var written atomic.Int64
	done := make(chan struct{}, streams)
	p := connectStalled(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { done <- struct{}{} }()
		for {
			n, err := w.Write(make([]byte, 32<<10))
			written.Add(int64(n))
			if err != nil {
				return
			}
			flush(w)
		}
	}))
	p.ok(p.framer.WriteSettings(window(maxWindow)))
	p.ok(p.framer.WriteWindowUpdate(0, maxWindow-defaultWindow))
	for i := range uint32(streams) {
		p.get(2*i+1, "/")
	}
	// The output stays full: everything is in two buffers.
	for written.Load() == 0 {
		runtime.Gosched()
	}
	_ = p.conn.NetConn().Close()
	for range streams {
		within(t, done, "a handler whose client has gone")
	}
	if n := written.Load(); n > 1<<20 {
		t.Errorf("%d bytes are taken", n)
	}
}

// CVE-2020-11080: a SETTINGS frame may contain a hundred settings.
func TestFramesWithManySettingsAreRefused(t *testing.T) {
	for name, server := range map[string]*httptest.Server{"ours": startOurs(t, blocking(t)), "Go's": startGo(t, blocking(t))} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, server)
			var many []http2.Setting
			for i := range 101 {
				many = append(many, http2.Setting{ID: http2.SettingID(1000 + i), Val: 1})
			}
			p.ok(p.framer.WriteSettings(many[1:]...))
			p.await(isAck)
			p.ok(p.framer.WriteSettings(many...))
			p.wantGoAway(http2.ErrCodeProtocol)
		})
	}
}
