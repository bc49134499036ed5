package h2

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
)

// scattered answers with size bytes in pieces of many sizes, some of them flushed.
func scattered(w http.ResponseWriter, r *http.Request) {
	var seed uint64
	var size int
	_, _ = fmt.Sscanf(r.URL.Path, "/%d/%d", &seed, &size)
	random := rand.New(rand.NewPCG(seed, 1))
	hash := sha256.New()
	w.Header().Set("Trailer", "X-Sum")
	for size > 0 {
		piece := make([]byte, min(size, 1+random.IntN(1<<(1+random.IntN(17)))))
		for i := range piece {
			piece[i] = byte(random.Uint32())
		}
		size -= len(piece)
		_, _ = hash.Write(piece) // has no error
		if _, err := w.Write(piece); err != nil {
			return
		}
		if random.IntN(3) == 0 {
			flush(w)
		}
	}
	w.Header().Set("X-Sum", fmt.Sprintf("%x", hash.Sum(nil)))
}

// Bodies are whole whatever happens to other streams, and nothing stays behind, which
// TestMain looks for.
func TestConcurrentStreams(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections, " connections"), func(t *testing.T) {
			o := bounds
			o.MaxConcurrentStreams = 200
			server := started(t, unstarted(http.HandlerFunc(scattered), o, nil))
			var all sync.WaitGroup
			for c := range connections {
				transport := server.Client().Transport.(*http.Transport).Clone()
				transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 256 << 10}
				client := &http.Client{Transport: transport}
				defer transport.CloseIdleConnections()
				for i := range 100 {
					all.Go(func() { one(t, client, fmt.Sprintf("%s/%d/%d", server.URL, c*1000+i, 1+(i*i*i)%400_000), i%4 == 3) })
				}
			}
			all.Wait()
		})
	}
}

// one gets a body, of which it reads a part only if it is to be cut.
func one(t *testing.T, client *http.Client, url string, cut bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if cut {
		_, _ = io.CopyN(io.Discard, resp.Body, 1000) // and then resets it
		return
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, resp.Body); err != nil {
		t.Error(err)
	}
	if got, want := fmt.Sprintf("%x", hash.Sum(nil)), resp.Trailer.Get("X-Sum"); got != want {
		t.Errorf("%s: the sum is %s, want %s", url, got, want)
	}
}
