package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the timeout of tests. No test waits for it to pass.
const patience = 2 * time.Minute

// bounds are the options of the API server.
var bounds = Options{MaxConcurrentStreams: 100, MaxUploadPerStream: 256 << 10, IdleTimeout: time.Minute}

// newServer returns a server with this package's HTTP/2, on a listener that wrap may change.
func newServer(handler http.Handler, o Options, wrap func(net.Listener) net.Listener) *httptest.Server {
	s := httptest.NewUnstartedServer(handler)
	if wrap != nil {
		s.Listener = wrap(s.Listener)
	}
	s.Listener = Listener{s.Listener}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	Configure(s.Config, o)
	s.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, DynamicRecordSizingDisabled: true}
	return s
}

func start(t testing.TB, s *httptest.Server) *httptest.Server {
	t.Helper()
	s.StartTLS()
	s.Client().Transport.(*http.Transport).ForceAttemptHTTP2 = true
	t.Cleanup(s.Close)
	return s
}

func startOurs(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	return start(t, newServer(handler, bounds, nil))
}

// startGo returns a server with Go's HTTP/2 and the same options.
func startGo(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	return start(t, newGoServer(t, handler, bounds))
}

func newGoServer(t testing.TB, handler http.Handler, o Options) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if err := ConfigureGo(s.Config, o); err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}}
	return s
}

// within receives from c, or fails after patience.
func within[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing for %v", what, patience)
		panic("unreachable")
	}
}

// peer is a client that sends arbitrary frames.
type peer struct {
	t       testing.TB
	conn    *tls.Conn
	framer  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	decoder *hpack.Decoder
	host    string
	pings   uint64  // sent by pingInto
	pong    [8]byte // the last one that read has received
	status  string  // of the last header block
}

// connect establishes TLS and sends nothing.
func connect(t testing.TB, s *httptest.Server) *peer {
	t.Helper()
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}
	config.ServerName = "example.com"
	conn, err := tls.Dial("tcp", s.Listener.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.NetConn().Close() }) // may be closed already
	_ = conn.SetDeadline(time.Now().Add(patience))
	p := &peer{t: t, conn: conn, framer: http2.NewFramer(conn, conn), host: "example.com"}
	p.framer.AllowIllegalWrites = true
	p.framer.SetMaxReadFrameSize(1 << 20)
	p.encoder = hpack.NewEncoder(&p.block)
	p.decoder = hpack.NewDecoder(4<<10, nil)
	return p
}

// dial connects and exchanges prefaces: the server has received the SETTINGS of the client, and vice
// versa.
func dial(t testing.TB, s *httptest.Server, settings ...http2.Setting) *peer {
	t.Helper()
	p := connect(t, s)
	p.preface(settings...)
	f := p.await(func(f http2.Frame) bool { _, ok := f.(*http2.SettingsFrame); return ok })
	if f.(*http2.SettingsFrame).IsAck() {
		t.Fatal("the server does not begin with SETTINGS")
	}
	p.await(isAck)
	p.ok(p.framer.WriteSettingsAck())
	return p
}

func (p *peer) preface(settings ...http2.Setting) {
	p.t.Helper()
	_, err := io.WriteString(p.conn, http2.ClientPreface)
	p.ok(err)
	p.ok(p.framer.WriteSettings(settings...))
}

func isAck(f http2.Frame) bool {
	s, ok := f.(*http2.SettingsFrame)
	return ok && s.IsAck()
}

func (p *peer) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// await reads frames until is returns true for one.
func (p *peer) await(is func(http2.Frame) bool) http2.Frame {
	p.t.Helper()
	for {
		if f := p.next(); is(f) {
			return f
		}
	}
}

// next reads a frame. It decodes all header blocks, because each may change the dynamic table.
func (p *peer) next() http2.Frame {
	p.t.Helper()
	f, err := p.framer.ReadFrame()
	if err != nil {
		p.t.Fatalf("read a frame: %v", err)
	}
	if head, ok := f.(*http2.HeadersFrame); ok {
		fields, err := p.decoder.DecodeFull(head.HeaderBlockFragment())
		p.ok(err)
		for _, field := range fields {
			if field.Name == ":status" {
				p.status = field.Value
			}
		}
	}
	return f
}

// fields encodes a header block of names and values.
func (p *peer) fields(fields ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		p.ok(p.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return bytes.Clone(p.block.Bytes())
}

// open sends the headers of a request, without a body if end is set.
func (p *peer) open(id uint32, method, path string, end bool, more ...string) {
	p.t.Helper()
	fields := append([]string{":method", method, ":scheme", "https", ":authority", p.host, ":path", path}, more...)
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: p.fields(fields...), EndStream: end, EndHeaders: true,
	}))
}

func (p *peer) get(id uint32, path string) { p.t.Helper(); p.open(id, "GET", path, true) }

// ping waits until the server has read everything that was sent.
func (p *peer) ping() {
	p.t.Helper()
	data := [8]byte{'p', 'i', 'n', 'g'}
	p.ok(p.framer.WritePing(false, data))
	p.await(func(f http2.Frame) bool { g, ok := f.(*http2.PingFrame); return ok && g.IsAck() && g.Data == data })
}

// wantReset reads until the stream is reset, and checks the code.
func (p *peer) wantReset(id uint32, code http2.ErrCode) {
	p.t.Helper()
	f := p.await(func(f http2.Frame) bool {
		_, reset := f.(*http2.RSTStreamFrame)
		_, away := f.(*http2.GoAwayFrame)
		return away || reset && f.Header().StreamID == id
	})
	reset, ok := f.(*http2.RSTStreamFrame)
	if !ok {
		p.t.Fatalf("%v instead of RST_STREAM", f)
	}
	if reset.ErrCode != code {
		p.t.Errorf("stream %d is reset with %v, want %v", id, reset.ErrCode, code)
	}
}

// wantGoAway reads until GOAWAY, and checks the code.
func (p *peer) wantGoAway(code http2.ErrCode) *http2.GoAwayFrame {
	p.t.Helper()
	f := p.await(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok }).(*http2.GoAwayFrame)
	if f.ErrCode != code {
		p.t.Errorf("GOAWAY with %v %q, want %v", f.ErrCode, f.DebugData(), code)
	}
	return f
}

// wantClosed reads until the connection is closed.
func (p *peer) wantClosed() {
	p.t.Helper()
	for {
		if _, err := p.framer.ReadFrame(); err != nil {
			var slow net.Error
			if errors.As(err, &slow) && slow.Timeout() {
				p.t.Error("the connection is not closed")
			}
			return
		}
	}
}

// answer is a response as received.
type answer struct {
	status string
	body   []byte
	ended  bool
	frames int // DATA frames
}

// read reads until done returns true, and collects the responses.
func (p *peer) read(into map[uint32]*answer, done func() bool) {
	p.t.Helper()
	for !done() {
		f := p.next()
		a := into[f.Header().StreamID]
		if a == nil {
			a = &answer{}
			into[f.Header().StreamID] = a
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			a.status, a.ended = p.status, f.StreamEnded()
		case *http2.DataFrame:
			a.body, a.ended, a.frames = append(a.body, f.Data()...), f.StreamEnded(), a.frames+1
		case *http2.PingFrame:
			p.pong = f.Data
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo {
				p.t.Fatalf("stream %d has been reset: %v", f.StreamID, f.ErrCode)
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				p.t.Fatalf("GOAWAY %v %q", f.ErrCode, f.DebugData())
			}
		}
	}
}

// wantAnswer reads and checks the response of a stream.
func (p *peer) wantAnswer(id uint32, status, body string) {
	p.t.Helper()
	got := map[uint32]*answer{id: {}}
	p.read(got, func() bool { return got[id].ended })
	if a := got[id]; a.status != status || string(a.body) != body {
		p.t.Errorf("stream %d: %s %q, want %s %q", id, a.status, clip(string(a.body)), status, clip(body))
	}
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// pattern returns a body without repetitions.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i*7)
	}
	return b
}

func large(n int) string { return strings.Repeat("0123456789abcdef", n/16+1)[:n] }

// bell wakes many goroutines at once, repeatedly.
type bell struct {
	mu   sync.Mutex
	wake chan struct{} // closed by the next ring; guarded by mu
}

func newBell() *bell { return &bell{wake: make(chan struct{})} }

// next returns a channel that the next ring closes.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.wake)
	b.wake = make(chan struct{})
}

// literal appends an uncompressed field (RFC 7541, section 6.2). With form 0x40 it is added to the
// dynamic table.
func literal(b []byte, form byte, name, value string) []byte {
	b = append(b, form)
	for _, s := range []string{name, value} {
		n := len(s)
		if n < 127 {
			b = append(b, byte(n))
		} else {
			b = append(b, 127)
			for n -= 127; n >= 128; n /= 128 {
				b = append(b, byte(n%128)|128)
			}
			b = append(b, byte(n))
		}
		b = append(b, s...)
	}
	return b
}

// requestBlock encodes a header block without changing the dynamic table.
func requestBlock(fields ...string) []byte {
	var b []byte
	for i := 0; i < len(fields); i += 2 {
		b = literal(b, 0, fields[i], fields[i+1])
	}
	return b
}

// lastPing is the payload of the last ping of a test.
var lastPing = [8]byte{'l', 'a', 's', 't'}
