package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/net/http2"
)

// window returns the setting of the initial window size.
func window(n uint32) http2.Setting {
	return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n}
}

// sized answers with the number of bytes in the path.
func sized(w http.ResponseWriter, r *http.Request) {
	var n int
	_, _ = fmt.Sscanf(r.URL.Path, "/%d", &n)
	_, _ = w.Write(pattern(n))
}

// RFC 9113, section 5.2.1: a blocked stream does not block others.
func TestBlockedStreamBlocksNoOther(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(sized)), window(0))
	p.get(1, "/100000")
	p.get(3, "/30000")
	p.ok(p.framer.WriteWindowUpdate(3, 30000))
	got := map[uint32]*answer{1: {}, 3: {}}
	p.read(got, func() bool { return got[3].ended })
	p.ok(p.framer.WriteWindowUpdate(0, 100000))
	p.ok(p.framer.WriteWindowUpdate(1, 100000))
	p.read(got, func() bool { return got[1].ended })
	if !bytes.Equal(got[1].body, pattern(100_000)) || !bytes.Equal(got[3].body, pattern(30_000)) {
		t.Error("the answers are others")
	}
}

// Streams share the window of the connection: of ten large responses, none gets all of it first.
func TestConnectionWindowIsSharedFairly(t *testing.T) {
	const answers, size = 10, 400_000
	p := dial(t, startOurs(t, http.HandlerFunc(sized)), window(maxWindow))
	for i := range answers {
		p.get(uint32(2*i+1), fmt.Sprint("/", size))
	}
	got := map[uint32]*answer{}
	begun, seen, ended := 0, 0, 0
	for at := defaultWindow; ended < answers; at += 32 << 10 {
		p.read(got, func() bool {
			begun, seen, ended = 0, 0, 0
			for id, a := range got {
				if id != 0 {
					begun++
					seen += len(a.body)
				}
				if a.ended {
					ended++
				}
			}
			// The window grows when all handlers have begun, however busy the machine is.
			return ended == answers || seen == at && begun == answers
		})
		least, most := size, 0
		for i := range answers {
			a := got[uint32(2*i+1)]
			if a == nil {
				least = 0
				continue
			}
			least, most = min(least, len(a.body)), max(most, len(a.body))
		}
		// The first one may use the initial window before the others request anything.
		if most-least > 4*(64<<10) && seen > answers*(64<<10) && ended == 0 {
			t.Fatalf("one stream has got %d bytes and another %d", most, least)
		}
		p.ok(p.framer.WriteWindowUpdate(0, 32<<10))
	}
	for i := range answers {
		if a := got[uint32(2*i+1)]; !bytes.Equal(a.body, pattern(size)) {
			t.Errorf("answer %d is another: %d bytes", i, len(a.body))
		}
	}
}

// A stream that is reset while it is in the send queue lets the next one continue.
func TestResetStreamLeavesTheSendQueue(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(sized)), window(maxWindow))
	p.get(1, fmt.Sprint("/", defaultWindow))
	p.wantAnswer(1, "200", string(pattern(defaultWindow))) // uses up the window of the connection
	ids := []uint32{3, 5, 7, 9}
	for _, id := range ids { // in this order in the send queue
		p.get(id, "/1000")
		p.await(func(f http2.Frame) bool { _, ok := f.(*http2.HeadersFrame); return ok })
	}
	p.ping()
	for _, id := range ids[:3] {
		p.ok(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	p.ping()
	p.ok(p.framer.WriteWindowUpdate(0, 1000))
	got := map[uint32]*answer{9: {}}
	p.read(got, func() bool { return got[9].ended })
}

// A stream that can continue for another reason lets the next one continue, too.
func TestUnblockedStreamLeavesTheSendQueue(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(sized)), window(maxWindow))
	p.get(1, fmt.Sprint("/", defaultWindow))
	p.wantAnswer(1, "200", string(pattern(defaultWindow)))
	ids := []uint32{3, 5, 7, 9, 11, 13}
	for _, id := range ids {
		p.get(id, "/1000")
		p.await(func(f http2.Frame) bool { _, ok := f.(*http2.HeadersFrame); return ok })
	}
	p.ping()
	// SETTINGS wake all streams, and the connection's window only one.
	p.ok(p.framer.WriteWindowUpdate(0, 6000))
	for i := range uint32(50) {
		p.ok(p.framer.WriteSettings(window(1<<20 + i)))
	}
	got := map[uint32]*answer{}
	p.read(got, func() bool {
		n := 0
		for _, id := range ids {
			if a := got[id]; a != nil && a.ended {
				n++
			}
		}
		return n == len(ids)
	})
}

// RFC 9113, section 6.9.2: SETTINGS_INITIAL_WINDOW_SIZE changes the windows of open streams, which
// may become negative.
func TestInitialWindowSizeChangesOpenStreams(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(sized)), window(1000))
	p.get(1, "/3000")
	got := map[uint32]*answer{1: {}}
	has := func(n int) func() bool { return func() bool { return len(got[1].body) >= n } }
	p.read(got, has(1000))
	p.ok(p.framer.WriteSettings(window(1))) // the window is -999
	p.await(isAck)
	p.ok(p.framer.WriteWindowUpdate(1, 999)) // it is 0
	p.pingInto(got)
	if n := len(got[1].body); n != 1000 {
		t.Fatalf("%d bytes, want 1000", n)
	}
	p.ok(p.framer.WriteWindowUpdate(1, 1))
	p.read(got, has(1001))
	p.ok(p.framer.WriteSettings(window(501))) // the window is 500
	p.read(got, has(1501))
	p.pingInto(got)
	if n := len(got[1].body); n != 1501 {
		t.Fatalf("%d bytes, want 1501", n)
	}
	p.ok(p.framer.WriteSettings(window(1 << 20)))
	p.read(got, func() bool { return got[1].ended })
	if !bytes.Equal(got[1].body, pattern(3000)) {
		t.Error("the answer is another")
	}
}

// pingInto is ping that collects the responses received in the meantime.
func (p *peer) pingInto(got map[uint32]*answer) {
	p.t.Helper()
	p.pings++
	var data [8]byte
	binary.BigEndian.PutUint64(data[:], p.pings)
	p.ok(p.framer.WritePing(false, data))
	p.read(got, func() bool { return p.pong == data })
}

func TestSmallWindowUpdatesDeliverEverything(t *testing.T) {
	const size = 3000
	p := dial(t, startOurs(t, http.HandlerFunc(sized)), window(0))
	p.get(1, fmt.Sprint("/", size))
	got := map[uint32]*answer{1: {}}
	for i := range size {
		p.ok(p.framer.WriteWindowUpdate(1, 1))
		if i%100 == 0 {
			p.read(got, func() bool { return len(got[1].body) > i })
		}
	}
	p.read(got, func() bool { return got[1].ended })
	if !bytes.Equal(got[1].body, pattern(size)) {
		t.Error("the answer is another")
	}
}

// RFC 9113, section 6.9.1.
func TestWindowOverflowsAreErrors(t *testing.T) {
	blocked := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	t.Run("stream", func(t *testing.T) {
		p := dial(t, startOurs(t, blocked))
		p.get(1, "/")
		p.ok(p.framer.WriteWindowUpdate(1, maxWindow))
		p.wantReset(1, http2.ErrCodeFlowControl)
		p.ping()
	})
	t.Run("connection", func(t *testing.T) {
		p := dial(t, startOurs(t, blocked))
		p.ok(p.framer.WriteWindowUpdate(0, maxWindow))
		p.wantGoAway(http2.ErrCodeFlowControl)
	})
	t.Run("settings", func(t *testing.T) {
		p := dial(t, startOurs(t, blocked))
		p.get(1, "/")
		p.ok(p.framer.WriteWindowUpdate(1, 100))
		p.ok(p.framer.WriteSettings(window(maxWindow)))
		p.wantGoAway(http2.ErrCodeFlowControl)
	})
	t.Run("settings beyond the maximum", func(t *testing.T) {
		p := dial(t, startOurs(t, blocked))
		p.ok(p.framer.WriteSettings(window(1 << 31)))
		p.wantGoAway(http2.ErrCodeFlowControl)
	})
	t.Run("increment of 0, stream", func(t *testing.T) {
		p := dial(t, startOurs(t, blocked))
		p.get(1, "/")
		p.ok(p.framer.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4)))
		p.wantReset(1, http2.ErrCodeProtocol)
	})
	t.Run("increment of 0, connection", func(t *testing.T) {
		p := dial(t, startOurs(t, blocked))
		p.ok(p.framer.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4)))
		p.wantGoAway(http2.ErrCodeProtocol)
	})
}

// narrow are the smallest options.
var narrow = Options{MaxConcurrentStreams: 1, MaxUploadPerStream: 64 << 10, IdleTimeout: bounds.IdleTimeout}

// blocking returns a handler that reads nothing until the end of the test.
func blocking(t *testing.T) http.Handler {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	})
}

// RFC 9113, section 6.9.1: data beyond the window is an error of the stream or the connection.
func TestUploadsBeyondTheWindowAreRefused(t *testing.T) {
	t.Run("stream", func(t *testing.T) {
		o := narrow
		o.MaxConcurrentStreams = 10
		p := dial(t, start(t, newServer(blocking(t), o, nil)))
		p.open(1, "POST", "/", false)
		for range 5 {
			p.ok(p.framer.WriteData(1, false, make([]byte, 16<<10)))
		}
		p.wantReset(1, http2.ErrCodeFlowControl)
		p.ping()
	})
	t.Run("connection", func(t *testing.T) {
		p := dial(t, start(t, newServer(blocking(t), narrow, nil)))
		p.open(1, "POST", "/", false)
		for range 5 {
			p.ok(p.framer.WriteData(1, false, make([]byte, 16<<10)))
		}
		p.wantGoAway(http2.ErrCodeFlowControl)
	})
	t.Run("padding counts", func(t *testing.T) {
		o := narrow
		o.MaxConcurrentStreams = 10
		p := dial(t, start(t, newServer(blocking(t), o, nil)))
		p.open(1, "POST", "/", false)
		for range 4 {
			p.ok(p.framer.WriteDataPadded(1, false, make([]byte, 16<<10-300), make([]byte, 255)))
		}
		// Padding is returned together with half of a window.
		p.ok(p.framer.WriteData(1, false, make([]byte, 4*300)))
		p.wantReset(1, http2.ErrCodeFlowControl)
	})
}

// RFC 9113, section 6.1: padding counts towards the windows and must be returned to them.
func TestPaddingIsReturnedToTheWindow(t *testing.T) {
	received := make(chan string, 1)
	p := dial(t, start(t, newServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		received <- fmt.Sprint(n, err)
	}), narrow, nil)))
	p.open(1, "POST", "/", false)
	const frames = 2000
	upload := uploader{p: p, stream: 64 << 10, conn: 64 << 10}
	for range frames {
		upload.spend(1 + 1 + 255)
		p.ok(p.framer.WriteDataPadded(1, false, []byte("x"), make([]byte, 255)))
	}
	p.ok(p.framer.WriteData(1, true, nil))
	if got, want := within(t, received, "the handler"), fmt.Sprint(frames, nil); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// uploader respects the windows.
type uploader struct {
	p            *peer
	stream, conn int
}

func (u *uploader) spend(n int) {
	u.p.t.Helper()
	for u.stream < n || u.conn < n {
		f := u.p.await(func(f http2.Frame) bool { _, ok := f.(*http2.WindowUpdateFrame); return ok }).(*http2.WindowUpdateFrame)
		if f.StreamID == 0 {
			u.conn += int(f.Increment)
		} else {
			u.stream += int(f.Increment)
		}
	}
	u.stream -= n
	u.conn -= n
}

func TestLargeUploads(t *testing.T) {
	const size = 20 << 20
	received := make(chan string, 1)
	p := dial(t, start(t, newServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		received <- fmt.Sprint(n, err)
	}), narrow, nil)))
	p.open(1, "POST", "/", false, "content-length", fmt.Sprint(size))
	upload := uploader{p: p, stream: 64 << 10, conn: 64 << 10}
	piece := make([]byte, 16<<10)
	for at := 0; at < size; at += len(piece) {
		upload.spend(len(piece))
		p.ok(p.framer.WriteData(1, at+len(piece) == size, piece))
	}
	if got, want := within(t, received, "the handler"), fmt.Sprint(size, nil); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Discarded bodies use only the windows of their streams, and are returned to that of the connection.
func TestDiscardedUploadsReturnTheConnectionWindow(t *testing.T) {
	p := dial(t, start(t, newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), narrow, nil)))
	upload := uploader{p: p, conn: 64 << 10}
	for id := uint32(1); id < 200; id += 2 {
		p.open(id, "POST", "/", false)
		// The answer may arrive before or after the data; wait for it before opening the next stream.
		upload.stream = 64 << 10
		upload.spend(10_000)
		p.ok(p.framer.WriteData(id, false, make([]byte, 10_000)))
		answered := false
		for !answered {
			switch f, err := p.framer.ReadFrame(); f := f.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					upload.conn += int(f.Increment)
				}
			case *http2.RSTStreamFrame:
				answered = true
			case nil, *http2.GoAwayFrame:
				t.Fatalf("stream %d: %v, %v", id, f, err)
			}
		}
	}
}

// CVE-2026-78663: data is returned to the window of the connection once, even if the client resets
// the stream and the handler continues to read.
func TestWindowsAreReturnedOnce(t *testing.T) {
	o := Options{MaxConcurrentStreams: 2, MaxUploadPerStream: 256 << 10, IdleTimeout: bounds.IdleTimeout}
	done := make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		_, _ = io.Copy(io.Discard, r.Body) // may be aborted
		done <- struct{}{}
	})
	for name, server := range map[string]*httptest.Server{
		"ours": newServer(handler, o, nil), "Go's": newGoServer(t, handler, o),
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, start(t, server))
			p.ping() // the server has sent its window
			initial := int(o.connWindow())
			upload := uploader{p: p, conn: initial}
			for id := uint32(1); id < 80; id += 2 {
				p.open(id, "POST", "/", false)
				upload.stream = o.MaxUploadPerStream
				for range 6 {
					upload.spend(16 << 10)
					p.ok(p.framer.WriteData(id, false, make([]byte, 16<<10)))
				}
				p.ok(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
				within(t, done, "the handler of a stream that was reset")
			}
			p.ok(p.framer.WritePing(false, lastPing))
			p.await(func(f http2.Frame) bool {
				if more, ok := f.(*http2.WindowUpdateFrame); ok && more.StreamID == 0 {
					upload.conn += int(more.Increment)
				}
				_, ok := f.(*http2.PingFrame)
				return ok
			})
			if upload.conn > initial {
				t.Errorf("the window is %d, and was %d at first", upload.conn, initial)
			}
		})
	}
}
