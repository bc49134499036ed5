package nexttier

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestLargeBodiesAreStreamedBothWays(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		// One piece in, one piece out: neither direction waits for the end of the other.
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		buffer := make([]byte, 1<<20)
		for {
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(buffer[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	reader, writer := io.Pipe()
	res, err := f.client.Do(f.request(t, http.MethodPost, "/api/v1/namespaces/n/services/s/proxy/x", reader))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	piece := make([]byte, 300<<10)
	_, _ = rand.Read(piece)
	got := make([]byte, len(piece))
	for range 50 {
		go func() { _, _ = writer.Write(piece) }()
		if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, piece) {
			t.Fatalf("the piece came back as another one (%v)", err)
		}
	}
	writer.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("at the end: %d bytes, %v", len(rest), err)
	}
}

func TestAbortedUploadIsNotCompleted(t *testing.T) {
	started, got := make(chan struct{}), make(chan error, 1)
	b := startBackend(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, len("half of")))
		close(started)
		_, err := io.ReadAll(r.Body)
		got <- err
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	reader, writer := io.Pipe()
	go func() {
		_, _ = io.WriteString(writer, "half of")
		<-started
		_ = writer.CloseWithError(errors.New("the client's disk broke"))
	}()
	if a, err := f.try(f.request(t, http.MethodPost, "/api/v1/pods", reader)); err == nil {
		t.Errorf("answer %+v", a)
	}
	if err := <-got; err == nil {
		t.Error("the next tier took half a body for the whole")
	}
}

// A handler that answers without reading the request sends a complete response. A client that sees
// an error stops sending without a notice (RFC 9113, section 8.1), and the proxy must not wait for
// the rest of the request.
func TestAnswerBeforeTheBody(t *testing.T) {
	for _, test := range []struct {
		path string // of a stream and of a short request
		code int
	}{
		{"/api/v1/nodes/none-such/proxy", http.StatusNotFound},
		{"/api/v1/nodes/none-such/proxy", http.StatusOK},
		{"/api/v1/nodes/none-such", http.StatusNotFound},
	} {
		t.Run(fmt.Sprint(test.path, " ", test.code), func(t *testing.T) {
			b := startBackend(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.code)
				_, _ = io.WriteString(w, "answer")
			})
			f := startFront(t, startProxy(t, testConfig(b.url())))
			sending, stop := io.Pipe() // never sends
			defer stop.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			got := f.do(t, f.request(t, http.MethodPatch, test.path, sending).WithContext(ctx))
			if got.code != test.code || got.body != "answer" {
				t.Errorf("got %d %q", got.code, got.body)
			}
		})
	}
}

func TestCompressedBodiesAreForwardedUnchanged(t *testing.T) {
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	fmt.Fprint(z, strings.Repeat("list", 10_000))
	z.Close()
	encodings := make(chan string, 1)
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		encodings <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(compressed.Bytes())
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	req := f.request(t, http.MethodGet, "/api/v1/pods", nil)
	req.Header.Set("Accept-Encoding", "gzip, br")
	a := f.do(t, req)
	if a.body != compressed.String() || a.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%d bytes, header %v", len(a.body), a.header)
	}
	if got := <-encodings; got != "gzip, br" {
		t.Errorf("the next tier was asked for %q", got)
	}
	// The proxy does not request compression on its own.
	f.client.Transport.(*http.Transport).DisableCompression = true
	f.get(t, "/api/v1/pods")
	if got := <-encodings; got != "" {
		t.Errorf("the next tier was asked for %q", got)
	}
}

func TestTrailersAreForwarded(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Announced")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Announced", r.Trailer.Get("X-Sent"))
		w.Header().Set(http.TrailerPrefix+"X-Surprise", "2")
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	req := f.request(t, http.MethodPost, "/x", io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Sent": {"1"}}
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "body" {
		t.Errorf("body %q, %v", body, err)
	}
	if res.Trailer.Get("X-Announced") != "1" || res.Trailer.Get("X-Surprise") != "2" {
		t.Errorf("trailers %v", res.Trailer)
	}
}
