package loopback_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"triune.dev/shared/transport/loopback"
)

// net/http's HTTP/1 server refuses bytes beyond the declared length at once; its HTTP/2 server
// only after it has sent the header.
func TestMoreThanTheDeclaredLengthIsRefused(t *testing.T) {
	c := clientOf(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		_, _ = io.WriteString(w, "abc")
		if _, err := io.WriteString(w, "d"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("error %v", err)
		}
	})
	if got := observe(t, c, http.MethodGet, "https://x/", nil); got.Body != "abc" || got.ContentLength != 3 || got.Broken {
		t.Errorf("observed %+v", got)
	}
}

func TestFlushedBytesArriveWhileTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clientOf(func(w http.ResponseWriter, r *http.Request) {
			for i := 0; ; i++ {
				fmt.Fprintf(w, "event %d\n", i)
				w.(http.Flusher).Flush()
				select {
				case <-time.After(time.Second):
				case <-r.Context().Done():
					return
				}
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		buffer := make([]byte, 100)
		for i := range 5 {
			n, err := res.Body.Read(buffer)
			if want := fmt.Sprintf("event %d\n", i); err != nil || string(buffer[:n]) != want {
				t.Errorf("read %q, %v, want %q", buffer[:n], err, want)
			}
			if took := time.Since(start); took != time.Duration(i)*time.Second {
				t.Errorf("event %d came after %v", i, took)
			}
		}
		cancel()
		if _, err := res.Body.Read(buffer); !errors.Is(err, context.Canceled) {
			t.Errorf("read after cancelling: %v", err)
		}
	})
}

func TestAFastHandlerIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wrote int
		c := clientOf(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				n, _ := w.Write(make([]byte, 1000))
				wrote += n
			}
		})
		res, err := c.Get("https://x/")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until the handler is blocked
		if wrote > 64<<10 {
			t.Errorf("the handler wrote %d bytes ahead", wrote)
		}
		if _, err := io.CopyN(io.Discard, res.Body, 1<<20); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if wrote < 1<<20-64<<10 || wrote > 1<<20+66<<10 {
			t.Errorf("the handler wrote %d bytes after the client had read 1 MiB", wrote)
		}
		res.Body.Close()
	})
}

// countingBody counts how often it was closed.
type countingBody struct {
	io.Reader
	closed chan struct{}
}

func (b *countingBody) Close() error { b.closed <- struct{}{}; return nil }

func TestRequestBodyIsClosedOnce(t *testing.T) {
	cases := map[string]struct {
		handler http.Handler
		header  http.Header
	}{
		"read":       {handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })},
		"not read":   {handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})},
		"closed":     {handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _ = r.Body.Close() })},
		"panic":      {handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })},
		"no handler": {},
		"upgrade":    {header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			body := &countingBody{strings.NewReader("hello"), make(chan struct{}, 10)}
			req := httptest.NewRequest(http.MethodPost, "https://x/", body)
			if c.header != nil {
				req.Header = c.header
			}
			res, err := loopback.New(func() http.Handler { return c.handler }).RoundTrip(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			<-body.closed
			if len(body.closed) > 0 {
				t.Error("closed more than once")
			}
		})
	}
}

func TestBodyReadAfterTheHandlerReturned(t *testing.T) {
	var body io.Reader
	res, err := clientOf(func(_ http.ResponseWriter, r *http.Request) { body = r.Body }).Post("https://x/", "", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	// Close on the response does not wait, so the end of the handler must not either.
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("error %v", err)
	}
}
