package loopback_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"triune.dev/shared/transport/loopback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func clientOf(h http.HandlerFunc) *http.Client {
	return &http.Client{Transport: loopback.New(func() http.Handler { return h })}
}

// observation is everything that a client can see of a response.
type observation struct {
	Code          int
	ContentLength int64
	ContentType   string
	Extra         []string
	Body          string
	Broken        bool
}

func observe(t *testing.T, c *http.Client, method, url string, body io.Reader) observation {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return observation{Broken: true}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	o := observation{Code: res.StatusCode, ContentLength: res.ContentLength, ContentType: res.Header.Get("Content-Type"), Extra: res.Header["X-Extra"], Body: string(data), Broken: err != nil}
	if o.Broken {
		// On a network, timing decides how much of a broken body arrives.
		o.Body = ""
	}
	return o
}

// TestObservedAsOverHTTP2 sends the same requests to the same handlers, through this transport
// and through a real HTTP/2 server.
func TestObservedAsOverHTTP2(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	cases := []struct {
		name, method, path, body string
		handler                  http.HandlerFunc
	}{
		{name: "nothing done", handler: func(http.ResponseWriter, *http.Request) {}},
		{name: "code only", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }},
		{name: "second code ignored", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "x")
		}},
		{name: "headers after the code are lost", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("X-Extra", "1")
			w.Header().Add("X-Extra", "2")
			w.WriteHeader(http.StatusOK)
			w.Header().Add("X-Extra", "3")
		}},
		{name: "content type found out", handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }},
		{name: "content type given", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}")
		}},
		{name: "no content", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic("a body was allowed")
			}
		}},
		{name: "head", method: http.MethodHead, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", "7")
			_, _ = io.WriteString(w, "content")
		}},
		{name: "less than declared", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "30")
			_, _ = io.WriteString(w, "abc")
		}},
		{name: "unknown length", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "abc")
		}},
		{name: "large body in one write", handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, big) }},
		{name: "large body in pieces", handler: func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(big); i += 1000 {
				_, _ = io.WriteString(w, big[i:min(i+1000, len(big))])
			}
		}},
		{name: "large body in growing pieces", handler: func(w http.ResponseWriter, _ *http.Request) {
			for i, n := 0, 1; i < len(big); i, n = i+n, n*2 {
				_, _ = io.WriteString(w, big[i:min(i+n, len(big))])
			}
		}},
		{name: "gives up before the header", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "abc")
			panic(http.ErrAbortHandler)
		}},
		{name: "gives up in the body", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "abc")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		{name: "request as parsed", method: http.MethodPost, path: "/apis/a%2Fb/x%20y?labelSelector=a%3Db&x&y=1+2", body: "hello", handler: func(w http.ResponseWriter, r *http.Request) {
			data, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s|%s|%s|%s|%s|%v|%s|%d|%v|%q|%v|%v|%s", r.Method, r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.URL, r.URL.IsAbs(),
				r.RequestURI, r.ContentLength, r.Proto, data, err, r.Form, r.Header.Get("X-Missing"))
		}},
		{name: "request without body", handler: func(w http.ResponseWriter, r *http.Request) {
			data, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%d|%q|%v|%s", r.ContentLength, data, err, r.Method)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(c.handler)
			server.EnableHTTP2 = true
			server.Config.ErrorLog = nil
			server.StartTLS()
			defer server.Close()
			method := c.method
			if method == "" {
				method = http.MethodGet
			}
			path := c.path
			if path == "" {
				path = "/"
			}
			var bodies [2]io.Reader
			if c.body != "" {
				bodies = [2]io.Reader{strings.NewReader(c.body), strings.NewReader(c.body)}
			}
			want := observe(t, server.Client(), method, server.URL+path, bodies[0])
			got := observe(t, clientOf(c.handler), method, server.URL+path, bodies[1])
			if len(want.Body) > 4096 && want.ContentLength < 0 {
				// A server may or may not know the length of a buffered body.
				got.ContentLength = -1
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("over HTTP/2 (-), in process (+):\n%s", diff)
			}
		})
	}
}

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

func TestClientGoingAwayEndsTheHandler(t *testing.T) {
	leave := map[string]func(cancel context.CancelFunc, res *http.Response){
		"context cancelled":    func(cancel context.CancelFunc, _ *http.Response) { cancel() },
		"response body closed": func(_ context.CancelFunc, res *http.Response) { _ = res.Body.Close() },
	}
	wait := map[string]func(w http.ResponseWriter, r *http.Request) error{
		"waiting for its context": func(_ http.ResponseWriter, r *http.Request) error { <-r.Context().Done(); return r.Context().Err() },
		"waiting for CloseNotify": func(w http.ResponseWriter, _ *http.Request) error {
			<-w.(http.CloseNotifier).CloseNotify() //nolint:staticcheck // The API server's wrappers use it.
			return context.Canceled
		},
		"writing without end": func(w http.ResponseWriter, _ *http.Request) error {
			for {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					return err
				}
			}
		},
		"writing more than fits": func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.Write(make([]byte, 1<<20))
			return err
		},
		"reading the body": func(_ http.ResponseWriter, r *http.Request) error {
			_, err := io.Copy(io.Discard, r.Body)
			return err
		},
	}
	for how, leave := range leave {
		for what, wait := range wait {
			t.Run(what+", "+how, func(t *testing.T) {
				ended := make(chan error, 1)
				c := clientOf(func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					ended <- wait(w, r)
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				body, feed := io.Pipe()
				defer feed.Close()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://x/", body)
				if err != nil {
					t.Fatal(err)
				}
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				leave(cancel, res)
				if err := <-ended; err == nil {
					t.Error("the handler noticed nothing")
				}
			})
		}
	}
}

func TestCancellingBeforeTheHeader(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	c := clientOf(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.Do(req); !errors.Is(err, context.Canceled) {
		res.Body.Close()
		t.Errorf("error %v", err)
	}
	<-ended
}

func TestClientTimeoutHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clientOf(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		c.Timeout = time.Second
		start := time.Now()
		res, err := c.Get("https://x/")
		if err == nil {
			res.Body.Close()
			t.Fatal("no error")
		}
		if !net.IsTimeout(err) || time.Since(start) != time.Second {
			t.Errorf("error %v after %v", err, time.Since(start))
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

func TestValuesOfTheClientsContextStayOutside(t *testing.T) {
	type key struct{}
	c := clientOf(func(w http.ResponseWriter, r *http.Request) {
		_, hasDeadline := r.Context().Deadline()
		fmt.Fprintf(w, "%v %v %v %v", r.Context().Value(key{}), hasDeadline, r.RemoteAddr, r.Host)
	})
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "secret"), time.Hour)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://name/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "<nil> false 127.0.0.1:0 name" {
		t.Errorf("the handler saw %q (%v)", body, err)
	}
}

func TestHeadersOfTheRequestAreTheHandlersOwn(t *testing.T) {
	c := clientOf(func(_ http.ResponseWriter, r *http.Request) { r.Header.Del("Authorization") })
	req, err := http.NewRequest(http.MethodGet, "https://x/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer t")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if req.Header.Get("Authorization") == "" {
		t.Error("the handler changed the client's request")
	}
}

func TestPanicsBreakTheConnectionOnly(t *testing.T) {
	ends := map[string]func(){
		"abort":          func() { panic(http.ErrAbortHandler) },
		"panic":          func() { panic("boom") },
		"goroutine left": runtime.Goexit,
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			res, err := clientOf(func(http.ResponseWriter, *http.Request) { end() }).Get("https://x/")
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				res.Body.Close()
				t.Errorf("before the header: error %v", err)
			}
			res, err = clientOf(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "partial")
				w.(http.Flusher).Flush()
				end()
			}).Get("https://x/")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			// client-go compares with ==, so the error must not be wrapped.
			if body, err := io.ReadAll(res.Body); err != io.ErrUnexpectedEOF || string(body) != "partial" {
				t.Errorf("in the body: %q, %v", body, err)
			}
		})
	}
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

func TestUpgradeIsRefused(t *testing.T) {
	req := httptest.NewRequest(http.MethodPost, "https://x/exec", nil)
	req.Header.Set("Connection", "keep-alive, Upgrade")
	req.Header.Set("Upgrade", "websocket")
	_, err := loopback.New(func() http.Handler { return http.NotFoundHandler() }).RoundTrip(req)
	if !errors.Is(err, loopback.ErrUpgrade) {
		t.Errorf("error %v", err)
	}
}

func TestHijackIsNotOffered(t *testing.T) {
	c := clientOf(func(w http.ResponseWriter, _ *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		fmt.Fprint(w, errors.Is(err, http.ErrNotSupported), errors.Is(http.NewResponseController(w).SetReadDeadline(time.Time{}), http.ErrNotSupported))
	})
	if got := observe(t, c, http.MethodGet, "https://x/", nil).Body; got != "true true" {
		t.Errorf("not supported: %s", got)
	}
}

func TestServerNotBuiltYet(t *testing.T) {
	var handler http.Handler
	c := &http.Client{Transport: loopback.New(func() http.Handler { return handler })}
	_, err := c.Get("https://x/")
	if !errors.Is(err, loopback.ErrNotServing) || !net.IsConnectionRefused(err) {
		t.Errorf("error %v", err)
	}
	handler = http.NotFoundHandler()
	res, err := c.Get("https://x/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("code %d", res.StatusCode)
	}
}

// decorator wraps response writers as the API server's filters do.
type decorator struct{ http.ResponseWriter }

func (d decorator) Unwrap() http.ResponseWriter { return d.ResponseWriter }

func TestWritersWrappedByTheAPIServerCanFlush(t *testing.T) {
	c := clientOf(func(w http.ResponseWriter, _ *http.Request) {
		_, ok := responsewriter.WrapForHTTP1Or2(decorator{w}).(http.Flusher)
		fmt.Fprint(w, ok)
	})
	if got := observe(t, c, http.MethodGet, "https://x/", nil).Body; got != "true" {
		t.Errorf("flusher: %s", got)
	}
}

// BenchmarkRoundTrip compares the call with a real HTTP/2 connection:
//
//	go test -bench RoundTrip -run '^$' ./shared/transport/loopback
func BenchmarkRoundTrip(b *testing.B) {
	small, list := bytes.Repeat([]byte("x"), 3500), bytes.Repeat([]byte("x"), 14<<20)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/list" {
			_, _ = w.Write(list)
			return
		}
		_, _ = w.Write(small)
	})
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	over := map[string]*http.Client{
		"in process":  {Transport: loopback.New(func() http.Handler { return handler })},
		"over HTTP/2": server.Client(),
	}
	buffer := make([]byte, 32<<10)
	for _, path := range []string{"/get", "/list"} {
		for name, client := range over {
			b.Run(path[1:]+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					res, err := client.Get(server.URL + path)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, buffer); err != nil {
						b.Fatal(err)
					}
					_ = res.Body.Close()
				}
			})
		}
	}
}
