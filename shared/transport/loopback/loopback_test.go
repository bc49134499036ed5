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
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"triune.dev/shared/transport/loopback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func clientOf(h http.HandlerFunc) *http.Client {
	return &http.Client{Transport: loopback.New(func() http.Handler { return h })}
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
