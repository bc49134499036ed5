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

// scattered sends a body of size bytes in pieces of different sizes, some of them flushed.
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
		_, _ = hash.Write(piece) // never fails
		if _, err := w.Write(piece); err != nil {
			return
		}
		if random.IntN(3) == 0 {
			flush(w)
		}
	}
	w.Header().Set("X-Sum", fmt.Sprintf("%x", hash.Sum(nil)))
}

// Bodies are complete whatever happens to other streams. TestMain checks for leaked goroutines.
func TestConcurrentStreams(t *testing.T) {
	for _, connections := range []int{1, 4} {
		t.Run(fmt.Sprint(connections, " connections"), func(t *testing.T) {
			o := bounds
			o.MaxConcurrentStreams = 200
			server := start(t, newServer(http.HandlerFunc(scattered), o, nil))
			var all sync.WaitGroup
			for c := range connections {
				transport := server.Client().Transport.(*http.Transport).Clone()
				transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 256 << 10}
				client := &http.Client{Transport: transport}
				defer transport.CloseIdleConnections()
				for i := range 100 {
					all.Go(func() { getBody(t, client, fmt.Sprintf("%s/%d/%d", server.URL, c*1000+i, 1+(i*i*i)%400_000), i%4 == 3) })
				}
			}
			all.Wait()
		})
	}
}

// getBody requests a body, and reads only a part of it if cut is set.
func getBody(t *testing.T, client *http.Client, url string, cut bool) {
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
		_, _ = io.CopyN(io.Discard, resp.Body, 1000) // closing the body then resets the stream
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
