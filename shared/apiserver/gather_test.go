package apiserver

import (
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
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
	}))
	count := &counting{Listener: server.Listener}
	server.Listener = wrap(count)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
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
		alone := rounds(t, func(l net.Listener) net.Listener { return l })
		together := rounds(t, func(l net.Listener) net.Listener { return gathering{l} })
		t.Logf("%d frames: %d writes, %d where they are gathered", gatheredStreams*gatheredRounds, alone, together)
		if together < alone*3/4 {
			return
		}
	}
	t.Error("gathering saves no writes")
}
