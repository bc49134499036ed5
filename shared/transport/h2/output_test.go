package h2

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"runtime"
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

// A large response is written four records at a time.
func TestLargeResponsesCoalesceWrites(t *testing.T) {
	const size = 4 << 20
	for _, window := range []int{64 << 10, 1<<20 - 1, size} {
		count := &counting{}
		server := start(t, newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			body := pattern(size)
			for len(body) > 0 {
				_, _ = w.Write(body[:64<<10])
				body = body[64<<10:]
			}
		}), bounds, func(l net.Listener) net.Listener { count.Listener = l; return count }))
		server.Client().Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: window}
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // the body was read
		if err != nil || !bytes.Equal(body, pattern(size)) {
			t.Errorf("a window of %d: the answer is another: %d bytes, %v", window, len(body), err)
		}
		n := count.writes.Load()
		t.Logf("a window of %d: %d writes", window, n)
		if window == size && n > 140 {
			t.Errorf("a window of %d: %d writes", window, n)
		}
	}
}

// Streams that wake up for the same event share writes. With one processor the order of goroutines
// is nearly always the same; retries make the test reliable.
func TestStreamsShareWrites(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const streams, rounds = 80, 20
	var writes int64
	for range 5 {
		if writes = events(t, streams, rounds); writes < streams*rounds/2 {
			t.Logf("%d frames: %d writes", streams*rounds, writes)
			return
		}
	}
	t.Errorf("%d frames: %d writes", streams*rounds, writes)
}

// events sends events to many streams of a connection, one after the other, and returns the number of
// writes.
func events(t *testing.T, streams, rounds int) int64 {
	t.Helper()
	bell := newBell()
	count := &counting{}
	server := start(t, newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rung := bell.next()
		flush(w)
		for range rounds {
			select {
			case <-rung:
			case <-r.Context().Done():
				return
			}
			rung = bell.next()
			_, _ = w.Write([]byte("e"))
			flush(w)
		}
	}), bounds, func(l net.Listener) net.Listener { count.Listener = l; return count }))
	bodies := make([]io.ReadCloser, streams)
	for i := range bodies {
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		bodies[i] = resp.Body
	}
	begin := count.writes.Load()
	for range rounds {
		bell.ring()
		for i, body := range bodies {
			var one [1]byte
			if _, err := io.ReadFull(body, one[:]); err != nil || one[0] != 'e' {
				t.Fatalf("stream %d: %q, %v", i, one, err)
			}
		}
	}
	return count.writes.Load() - begin
}

// Unflushed data arrives even if the handler waits for the client.
func TestUnflushedDataArrives(t *testing.T) {
	const size = 100_000 // more than one full output
	arrived := make(chan struct{})
	server := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(pattern(size))
		select {
		case <-arrived:
		case <-r.Context().Done():
		}
	}))
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := make([]byte, size)
	if _, err := io.ReadFull(resp.Body, body); err != nil || !bytes.Equal(body, pattern(size)) {
		t.Fatal(err)
	}
	close(arrived)
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
		t.Errorf("%d bytes more, %v", len(rest), err)
	}
}
