package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
)

// outcome holds the response that the client received and what the handler recorded.
type outcome struct {
	Status        int
	Proto         string
	ContentLength int64
	Header        http.Header
	Trailer       http.Header
	Interim       []string
	Body          string
	Failed        bool // the request failed
	BodyFailed    bool
	Notes         []string
}

// exchange is a request and its handler.
type exchange struct {
	name    string
	request func() *http.Request // nil for GET /
	handler func(w http.ResponseWriter, r *http.Request, note func(string, ...any))
}

// run sends the request of an exchange to a server.
func (e exchange) run(t *testing.T, serve func(testing.TB, http.Handler) *httptest.Server) outcome {
	t.Helper()
	var got outcome
	var mu sync.Mutex
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		got.Notes = append(got.Notes, fmt.Sprintf(format, args...))
	}
	returned := make(chan struct{}, 10)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { returned <- struct{}{} }()
		e.handler(w, r, note)
	}))
	req := httptest.NewRequest("GET", "/", nil)
	if e.request != nil {
		req = e.request()
	}
	host := req.Host
	req.RequestURI = ""
	req.URL.Scheme, req.URL.Host, req.Host = "https", server.Listener.Addr().String(), host
	req = req.WithContext(httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			got.Interim = append(got.Interim, fmt.Sprint(code, header))
			return nil
		},
	}))
	resp, err := server.Client().Transport.RoundTrip(req)
	if err != nil {
		got.Failed = true
	} else {
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // the body was read
		resp.Header.Del("Date")
		got.Status, got.Proto, got.ContentLength, got.Header = resp.StatusCode, resp.Proto, resp.ContentLength, resp.Header
		got.Trailer, got.Body, got.BodyFailed = resp.Trailer, string(body), err != nil
	}
	within(t, returned, "the handler")
	mu.Lock()
	defer mu.Unlock()
	return got
}

// compare checks that both servers behave alike in each exchange.
func compare(t *testing.T, exchanges []exchange) {
	for _, e := range exchanges {
		t.Run(e.name, func(t *testing.T) {
			want, got := e.run(t, startGo), e.run(t, startOurs)
			if got.Status != 0 && got.Proto != "HTTP/2.0" {
				t.Fatal(got.Proto)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				if len(diff) > 3000 {
					diff = diff[:3000]
				}
				t.Errorf("-Go's server +ours:\n%s", diff)
			}
		})
	}
}

func flush(w http.ResponseWriter) { w.(http.Flusher).Flush() }

func method(name string) func() *http.Request {
	return func() *http.Request { return httptest.NewRequest(name, "/", nil) }
}

type noter = func(string, ...any)

// writes sends parts and records each result.
func writes(parts ...string) func(http.ResponseWriter, *http.Request, noter) {
	return func(w http.ResponseWriter, _ *http.Request, note noter) {
		for _, part := range parts {
			if part == "FLUSH" {
				flush(w)
				continue
			}
			n, err := io.WriteString(w, part)
			note("%d %v", n, err)
		}
	}
}

func with(key, value string, handler func(http.ResponseWriter, *http.Request, noter)) func(http.ResponseWriter, *http.Request, noter) {
	return func(w http.ResponseWriter, r *http.Request, note noter) {
		w.Header().Set(key, value)
		handler(w, r, note)
	}
}

func status(code int, handler func(http.ResponseWriter, *http.Request, noter)) func(http.ResponseWriter, *http.Request, noter) {
	return func(w http.ResponseWriter, r *http.Request, note noter) {
		w.WriteHeader(code)
		handler(w, r, note)
	}
}

func bytewise(parts ...int) func(http.ResponseWriter, *http.Request, noter) {
	return func(w http.ResponseWriter, _ *http.Request, note noter) {
		for _, n := range parts {
			k, err := w.Write(pattern(n))
			note("%d %v", k, err)
		}
	}
}

func TestResponsesMatchGo(t *testing.T) {
	many := make([]int, 2000)
	for i := range many {
		many[i] = i % 37
	}
	compare(t, []exchange{
		{name: "empty", handler: writes()},
		{name: "empty and flushed", handler: writes("FLUSH")},
		{name: "empty write", handler: writes("")},
		{name: "small", handler: writes("hello")},
		{name: "small, flushed at the end", handler: writes("hello", "FLUSH")},
		{name: "flush in between", handler: writes("hello", "FLUSH", "world", "FLUSH", "FLUSH", "end")},
		{name: "4095 bytes", handler: bytewise(4095)},
		{name: "4096 bytes", handler: bytewise(4096)},
		{name: "4097 bytes", handler: bytewise(4097)},
		{name: "4096 and 1 bytes", handler: bytewise(4096, 1)},
		{name: "4000 and 4000 bytes", handler: writes(large(4000), large(4000))},
		{name: "long strings", handler: writes(large(100), large(70_000), large(5000))},
		{name: "many small writes", handler: bytewise(many...)},
		{name: "64 KiB", handler: bytewise(64 << 10)},
		{name: "65535 bytes", handler: bytewise(64<<10 - 1)},
		{name: "5 MiB at once", handler: bytewise(5 << 20)},
		{name: "5 MiB in pieces", handler: bytewise(1<<20, 3<<20, 1<<20)},
		{name: "HEAD", request: method("HEAD"), handler: writes()},
		{name: "HEAD with a body", request: method("HEAD"), handler: writes("hello")},
		{name: "HEAD with a body that is flushed", request: method("HEAD"), handler: writes("<html>", "FLUSH")},
		{name: "HEAD with content-length", request: method("HEAD"), handler: with("Content-Length", "1234", writes())},
		{name: "HEAD with a typed body", request: method("HEAD"), handler: with("Content-Type", "text/x", writes("hello"))},
		{name: "HEAD flushed", request: method("HEAD"), handler: writes("FLUSH", "hello")},
		{name: "204", handler: status(204, writes("x"))},
		{name: "204 empty", handler: status(204, writes())},
		{name: "304", handler: with("Etag", `"x"`, status(304, writes("x")))},
		{name: "304 with content-length", handler: with("Content-Length", "7", status(304, writes()))},
		{name: "404", handler: status(404, writes("no such thing"))},
		{name: "599", handler: status(599, writes("x"))},
		{name: "content-length right", handler: with("Content-Length", "5", writes("he", "FLUSH", "llo"))},
		{name: "content-length too large", handler: with("Content-Length", "10", writes("hello"))},
		{name: "content-length is no number", handler: with("Content-Length", "many", writes("hello"))},
		{name: "content-length negative", handler: with("Content-Length", "-3", writes("hello"))},
		{name: "sniffed type", handler: writes("<html><body>x</body></html>")},
		{name: "sniffed type of a large body", handler: bytewise(100_000)},
		{name: "no type", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			w.Header()["Content-Type"] = nil
			_, _ = w.Write([]byte("x"))
		}},
		{name: "no date", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			w.Header()["Date"] = nil
			_, _ = w.Write([]byte("x"))
		}},
		{name: "encoding without type", handler: with("Content-Encoding", "gzip", writes("hello"))},
		{name: "empty encoding", handler: with("Content-Encoding", "", writes("hello"))},
		{name: "second WriteHeader", handler: status(201, status(404, writes("x")))},
		{name: "headers changed too late", handler: status(200, with("X-Late", "1", writes("x")))},
		{name: "headers changed between write and flush", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			_, _ = w.Write([]byte("x"))
			w.Header().Set("X-Late", "1")
		}},
		{name: "103", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(103)
			w.Header().Set("Link", "</other.css>")
			w.WriteHeader(103)
			w.Header().Del("Link")
			_, _ = w.Write([]byte("hello"))
		}},
		{name: "103 with content-length", handler: with("Content-Length", "5", status(103, writes("hello")))},
		{name: "invalid fields", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			h := w.Header()
			h.Set("X-Good", "tab\tis allowed")
			h["X-Some"] = []string{"a\nb", "good", "c\x00d"}
			h["X bad name"] = []string{"x"}
			h["É"] = []string{"x"}
			h[""] = []string{"x"}
			h[":status"] = []string{"500"}
			for _, key := range []string{"Connection", "Transfer-Encoding"} {
				h.Set(key, "x")
			}
			_, _ = w.Write([]byte("hello"))
		}},
		{name: "many values", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			w.Header()["X-Many"] = []string{"a", "b", "", "a"}
			w.Header()["x-lower"] = []string{"a"}
			w.Header().Add("Set-Cookie", "a=b")
			w.Header().Add("Set-Cookie", "c=d")
		}},
		{name: "large headers", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			for i := range 40 {
				w.Header().Set(fmt.Sprint("X-Large-", i), large(4000))
			}
			_, _ = w.Write([]byte("hello"))
		}},
		{name: "connection close", handler: with("Connection", "close", writes("hello"))},
	})
}

// Content-Length of responses with trailers may differ and is not compared.
func TestTrailersMatchGo(t *testing.T) {
	trailers := func(body string, declared ...string) func(http.ResponseWriter, *http.Request, noter) {
		return func(w http.ResponseWriter, _ *http.Request, _ noter) {
			for _, d := range declared {
				w.Header().Add("Trailer", d)
			}
			flush(w)
			_, _ = io.WriteString(w, body)
			w.Header().Set("X-One", "1")
			w.Header().Set("X-Two", "2")
			w.Header().Set(http.TrailerPrefix+"X-Three", "3")
		}
	}
	compare(t, []exchange{
		{name: "declared", handler: trailers("hello", "X-One, x-two")},
		{name: "declared one by one", handler: trailers("hello", "X-One", "X-Two")},
		{name: "declared twice", handler: trailers("hello", "X-One", "X-One")},
		{name: "declared and not set", handler: with("Trailer", "X-Never", writes("hello"))},
		{name: "forbidden", handler: trailers("hello", "Content-Length, Transfer-Encoding, Trailer, X-One")},
		{name: "with the prefix", handler: trailers("hello")},
		{name: "without a body", handler: trailers("", "X-One")},
		{name: "of a large body", handler: trailers(large(100_000), "X-One")},
		{name: "large", handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
			w.Header().Set("Trailer", "X-One")
			flush(w)
			w.Header().Set("X-One", large(50_000))
		}},
	})
}

func TestPanicsMatchGo(t *testing.T) {
	panics := func(flushed bool, why any) func(http.ResponseWriter, *http.Request, noter) {
		return func(w http.ResponseWriter, _ *http.Request, _ noter) {
			_, _ = io.WriteString(w, "hello")
			if flushed {
				flush(w)
			}
			panic(why)
		}
	}
	compare(t, []exchange{
		{name: "abort", handler: panics(false, http.ErrAbortHandler)},
		{name: "abort after a flush", handler: panics(true, http.ErrAbortHandler)},
		{name: "other", handler: panics(false, "oh")},
		{name: "other after a flush", handler: panics(true, errors.New("oh"))},
		{name: "WriteHeader of an invalid code", handler: status(99, writes())},
	})
}

// RFC 9110, section 8.6: no more than Content-Length is sent.
func TestMoreThanContentLengthIsRefused(t *testing.T) {
	for _, parts := range [][]string{{"hello"}, {"he", "llo"}, {"hell", "FLUSH", "o"}, {large(5000)}} {
		e := exchange{handler: func(w http.ResponseWriter, _ *http.Request, note noter) {
			w.Header().Set("Content-Length", "4")
			for _, part := range parts {
				if part == "FLUSH" {
					flush(w)
				} else if _, err := io.WriteString(w, part); err != nil {
					note("%v", err)
				}
			}
		}}
		got := e.run(t, startOurs)
		if len(got.Notes) != 1 || got.Notes[0] != http.ErrContentLength.Error() || len(got.Body) > 4 {
			t.Errorf("%q: %q, body %q", parts, got.Notes, got.Body)
		}
	}
}

// RFC 9113, section 8.2.2: connection-specific fields are not sent.
func TestConnectionFieldsAreDropped(t *testing.T) {
	got := exchange{handler: func(w http.ResponseWriter, _ *http.Request, _ noter) {
		for _, key := range []string{"Connection", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Keep-Alive"} {
			w.Header().Set(key, "x")
		}
	}}.run(t, startOurs)
	if want := (http.Header{"Content-Length": {"0"}}); !cmp.Equal(got.Header, want) {
		t.Errorf("%v, want %v", got.Header, want)
	}
}

// RFC 9110, section 8.6: responses without a body have no Content-Length.
func TestNoContentHasNoContentLength(t *testing.T) {
	got := exchange{handler: with("Content-Length", "0", status(204, writes()))}.run(t, startOurs)
	if got.Header["Content-Length"] != nil {
		t.Errorf("%v", got.Header)
	}
}

// A panic of a handler does not close the connection (RFC 9113, section 5.4.2).
func TestPanicEndsOneStream(t *testing.T) {
	server := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, r.RemoteAddr)
	}))
	addr := func() string {
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	before := addr()
	if resp, err := server.Client().Get(server.URL + "/panic"); err == nil {
		_ = resp.Body.Close() // not expected
		t.Error("a panic is answered")
	}
	if after := addr(); after != before {
		t.Errorf("another connection: %s, %s", before, after)
	}
}

// RFC 9113, section 6.8: Connection: close becomes GOAWAY.
func TestConnectionCloseSendsGoAway(t *testing.T) {
	server := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "bye")
	}))
	p := dial(t, server)
	p.get(1, "/")
	var away, answered bool
	p.await(func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			away = f.LastStreamID == 1
		case *http2.DataFrame:
			answered = f.StreamEnded() && string(f.Data()) == "bye"
		}
		return away && answered
	})
	p.wantClosed()
}

// Writes after the handler has returned fail.
func TestWritesAfterTheHandlerReturnFail(t *testing.T) {
	writers := make(chan http.ResponseWriter, 1)
	server := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writers <- w }))
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // the body is empty
	w := <-writers
	if resp, err := server.Client().Get(server.URL); err == nil { // answered after the first one has ended
		_ = resp.Body.Close()
	}
	<-writers
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("Write succeeds")
	}
	if err := http.NewResponseController(w).Flush(); err == nil {
		t.Error("Flush succeeds")
	}
}
