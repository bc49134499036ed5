package apiserver

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// counting counts the writes of all connections.
type counting struct {
	net.Listener
	writes atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countingConn{conn, &c.writes}, nil
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// serve runs a server of HTTP/2 on a listener that wrap may change, and counts the
// writes to what is below.
func serve(t *testing.T, wrap func(net.Listener) net.Listener, handler http.HandlerFunc) (*httptest.Server, *counting) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	count := &counting{Listener: server.Listener}
	server.Listener = wrap(count)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, count
}

func plain(l net.Listener) net.Listener { return l }

func gathers(l net.Listener) net.Listener { return gathering{l} }

const (
	gatheredStreams = 80 // of one connection
	gatheredRounds  = 20
)

// rounds sends events to many streams of one connection, each when all have got the one
// before, and returns how many writes that took.
func rounds(t *testing.T, wrap func(net.Listener) net.Listener) int64 {
	t.Helper()
	var mu sync.Mutex
	wake := make(chan struct{})
	next := func() <-chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		return wake
	}
	ring := func() {
		mu.Lock()
		defer mu.Unlock()
		close(wake)
		wake = make(chan struct{})
	}
	server, count := serve(t, wrap, func(w http.ResponseWriter, req *http.Request) {
		rung := next()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for range gatheredRounds {
			select {
			case <-rung:
			case <-req.Context().Done():
				return
			}
			rung = next()
			_, _ = w.Write([]byte("e"))
			_ = http.NewResponseController(w).Flush()
		}
	})
	client := server.Client()
	bodies := make([]io.ReadCloser, gatheredStreams)
	for i := range bodies {
		resp, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		bodies[i] = resp.Body
	}
	begin := count.writes.Load()
	for range gatheredRounds {
		ring()
		for i, body := range bodies {
			var one [1]byte
			if _, err := io.ReadFull(body, one[:]); err != nil || one[0] != 'e' {
				t.Fatalf("stream %d: %q, %v", i, one, err)
			}
		}
	}
	return count.writes.Load() - begin
}

// Frames of many streams, for which there is one event, share writes. On one processor
// the order of goroutines is nearly always the same; a few tries make it always.
func TestFramesOfManyStreamsShareWrites(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 5 {
		alone := rounds(t, plain)
		together := rounds(t, gathers)
		t.Logf("%d frames: %d writes, %d where they are gathered", gatheredStreams*gatheredRounds, alone, together)
		if together < alone*3/4 {
			return
		}
	}
	t.Error("gathering saves no writes")
}

// long is the size of a large answer.
const long = 4 << 20

// answer returns a long answer that a client with the given window is sent, and how many writes that took.
func answer(t *testing.T, window int, wrap func(net.Listener) net.Listener) ([]byte, int64) {
	t.Helper()
	server, count := serve(t, wrap, func(w http.ResponseWriter, _ *http.Request) {
		part := make([]byte, 64<<10)
		for at := 0; at < long; at += len(part) {
			for i := range part {
				part[i] = byte((at + i) >> 8)
			}
			_, _ = w.Write(part)
		}
	})
	client := server.Client()
	client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: window}
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.ProtoMajor != 2 {
		t.Fatalf("%s: %v", resp.Proto, err)
	}
	return body, count.writes.Load()
}

// Records of a long answer share writes, as far as the client's window goes: what is
// held when it is full must still be sent, for the client waits for it.
func TestRecordsOfALongAnswerShareWrites(t *testing.T) {
	want, alone := answer(t, long, plain)
	if len(want) != long {
		t.Fatalf("%d bytes", len(want))
	}
	for _, window := range []int{64 << 10, 1<<20 - 1, long} {
		body, together := answer(t, window, gathers)
		t.Logf("a window of %d: %d writes of records, %d where they are gathered", window, alone, together)
		if !bytes.Equal(body, want) {
			t.Errorf("a window of %d: the answer is another where records are gathered", window)
		}
		if window == long && together > alone/2 {
			t.Errorf("gathering saves no writes")
		}
	}
}

// An answer whose end is no short record is sent without waiting for another.
func TestHeldRecordsAreSentLate(t *testing.T) {
	read := make(chan struct{})
	server, _ := serve(t, gathers, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Length", "200000")
		_, _ = w.Write(make([]byte, 100_000))
		select {
		case <-read:
		case <-req.Context().Done():
			return
		}
		_, _ = w.Write(make([]byte, 100_000))
	})
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	close(read)
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 100_000 {
		t.Fatalf("%d bytes, %v", n, err)
	}
}
