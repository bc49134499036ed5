package loopback_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
