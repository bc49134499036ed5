package h2

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"strings"
	"testing"
)

// dump formats what a handler receives.
func dump(r *http.Request) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Method, r.URL, r.RequestURI, r.Proto, r.ProtoMajor, r.ProtoMinor, r.ContentLength, r.TransferEncoding)
	fmt.Fprintln(&b, r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.Close, r.TLS != nil, r.TLS != nil && r.TLS.HandshakeComplete)
	host := r.Host
	if strings.HasPrefix(host, "127.0.0.1:") {
		host = "server"
	}
	fmt.Fprintln(&b, host, r.URL.Host == "", r.RemoteAddr != "", r.Context().Value(http.ServerContextKey) != nil, r.Context().Value(http.LocalAddrContextKey) != nil)
	for _, h := range []http.Header{r.Header, r.Trailer} {
		var keys []string
		for key, values := range h {
			keys = append(keys, fmt.Sprintf("%s: %q", key, values))
		}
		sort.Strings(keys)
		fmt.Fprintln(&b, len(h), strings.Join(keys, "\n"))
	}
	return b.String()
}

func echo(w http.ResponseWriter, r *http.Request, note noter) {
	note("%s", dump(r))
	body, err := io.ReadAll(r.Body)
	note("%d bytes %v %v", len(body), err, r.Trailer)
	_, err = r.Body.Read(make([]byte, 1))
	note("again: %v", err)
	note("close: %v", r.Body.Close())
	_, _ = w.Write(body)
}

func post(body func() io.Reader) func() *http.Request {
	return func() *http.Request { return httptest.NewRequest("POST", "/", body()) }
}

func text() io.Reader { return strings.NewReader("hello") }

// long returns a body of unknown length.
func long() io.Reader { return &repeated{left: 5 << 20} }

func set(key string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[key] = values }
}

// unsized hides the length of a body.
type unsized struct{ io.Reader }

func TestRequestsMatchGo(t *testing.T) {
	change := func(f func(*http.Request)) func() *http.Request {
		return func() *http.Request { r := httptest.NewRequest("GET", "/a%2Fb/c?x=1&y=%20#f", nil); f(r); return r }
	}
	none := func(w http.ResponseWriter, r *http.Request, note noter) {
		note("%s", dump(r))
		_, _ = io.WriteString(w, "not read")
	}
	compare(t, []exchange{
		{name: "url", request: change(func(*http.Request) {}), handler: echo},
		{name: "host", request: change(func(r *http.Request) { r.Host = "other.example" }), handler: echo},
		{name: "cookies", request: change(func(r *http.Request) {
			r.AddCookie(&http.Cookie{Name: "a", Value: "b"})
			r.AddCookie(&http.Cookie{Name: "c", Value: "d"})
		}), handler: echo},
		{name: "many values", request: change(set("X-Many", "a", "", "c")), handler: echo},
		{name: "te", request: change(set("Te", "trailers")), handler: echo},
		{name: "large headers", request: change(func(r *http.Request) {
			for i := range 50 {
				r.Header.Set(fmt.Sprint("X-Large-", i), large(3000))
			}
		}), handler: echo},
		{name: "options", request: method("OPTIONS"), handler: echo},
		{name: "put without a body", request: method("PUT"), handler: echo},
		{name: "empty body", request: post(func() io.Reader { return strings.NewReader("") }), handler: echo},
		{name: "small body", request: post(text), handler: echo},
		{name: "body of 5 MiB", request: post(long), handler: echo},
		{name: "sized body", request: post(func() io.Reader { return bytes.NewReader(pattern(300_000)) }), handler: echo},
		{name: "unread small body", request: post(text), handler: none},
		{name: "unread body of 5 MiB", request: post(long), handler: none},
		{name: "body read in part", request: post(long),
			handler: func(w http.ResponseWriter, r *http.Request, note noter) {
				n, err := io.ReadFull(r.Body, make([]byte, 100_000))
				note("%d %v", n, err)
				_, _ = io.WriteString(w, "enough")
			}},
		{name: "body closed", request: post(text),
			handler: func(_ http.ResponseWriter, r *http.Request, note noter) {
				note("%v", r.Body.Close())
				_, err := r.Body.Read(make([]byte, 1))
				note("%v", err != nil)
			}},
		{name: "trailers", request: func() *http.Request {
			r := httptest.NewRequest("POST", "/", unsized{strings.NewReader("hello")})
			r.ContentLength = -1
			r.Trailer = http.Header{"X-One": {"1"}, "X-Two": {"2", "3"}}
			return r
		}, handler: echo},
		{name: "100-continue, read", request: func() *http.Request {
			r := httptest.NewRequest("POST", "/", strings.NewReader("hello"))
			r.Header.Set("Expect", "100-continue")
			return r
		}, handler: echo},
		{name: "another expectation", request: change(set("Expect", "200-maybe")), handler: echo},
	})
}

// repeated is a body of n bytes.
type repeated struct{ left int }

func (r *repeated) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.left)
	for i := range p[:n] {
		p[i] = byte(r.left - i)
	}
	r.left -= n
	return n, nil
}

// net/http serves requests of HTTP/1.1.
func TestHTTP1ClientsAreServed(t *testing.T) {
	server := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	transport := server.Client().Transport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	transport.ForceAttemptHTTP2 = false
	transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	resp, err := (&http.Client{Transport: transport}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "HTTP/1.1" {
		t.Errorf("%q, %v", body, err)
	}
}
