package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
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
