package nexttier

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// cpu returns the processor time of this process. It includes client, proxy and server: the cost of
// the hop is the difference between requests with and without the proxy.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// plainBackend starts a replica without authentication, whose cost does not belong to the hop.
func plainBackend(b *testing.B, handler http.HandlerFunc) string {
	b.Helper()
	cert, err := testPKI.Serving["core"].Load()
	if err != nil {
		b.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	b.Cleanup(server.Close)
	return server.URL
}

// BenchmarkHop measures the cost of the proxy: compare cpu-us/op of "hop" and "direct". Wall-clock
// times mean little on a shared machine.
//
//	go test -run '^$' -bench Hop ./shared/transport/nexttier
func BenchmarkHop(b *testing.B) {
	get, list, event := bytes.Repeat([]byte("x"), 3500), bytes.Repeat([]byte("x"), 14<<20), bytes.Repeat([]byte("x"), 3500)
	next := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/get":
			w.Header().Set("Content-Length", strconv.Itoa(len(get)))
			_, _ = w.Write(get)
		case "/list":
			w.Header().Set("Content-Length", strconv.Itoa(len(list)))
			_, _ = w.Write(list)
		case "/chunks":
			// Like upstream's streaming encoder: unknown length, 32 kB at a time.
			for rest := list; len(rest) > 0; rest = rest[min(len(rest), 32<<10):] {
				_, _ = w.Write(rest[:min(len(rest), 32<<10)])
			}
		case "/watch":
			w.(http.Flusher).Flush()
			for {
				select {
				case <-next:
					_, _ = w.Write(event)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(handler))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	c := testConfig(plainBackend(b, handler))
	c.MaxInFlight = 600
	p := startProxy(b, c)
	user := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), alice)))
	})
	front := httptest.NewUnstartedServer(user)
	front.EnableHTTP2 = true
	front.StartTLS()
	defer front.Close()

	// For comparison: the proxy of net/http, without identity and balancing.
	reverse := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: server.Listener.Addr().String()})
	reverse.Transport = server.Client().Transport
	reversed := httptest.NewUnstartedServer(reverse)
	reversed.EnableHTTP2 = true
	reversed.StartTLS()
	defer reversed.Close()

	ways := []struct {
		name   string
		server *httptest.Server
	}{{"direct", server}, {"hop", front}, {"ReverseProxy", reversed}}
	buffer := make([]byte, 64<<10)
	for _, path := range []string{"/get", "/list", "/chunks"} {
		for _, way := range ways {
			b.Run(path[1:]+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				client, address := way.server.Client(), way.server.URL+path
				before := cpu(b)
				for b.Loop() {
					res, err := client.Get(address)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, buffer); err != nil {
						b.Fatal(err)
					}
					_ = res.Body.Close()
				}
				b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
	for _, way := range ways {
		b.Run("event/"+way.name, func(b *testing.B) {
			b.ReportAllocs()
			res, err := way.server.Client().Get(way.server.URL + "/watch?watch=1")
			if err != nil {
				b.Fatal(err)
			}
			defer res.Body.Close()
			before := cpu(b)
			for b.Loop() {
				next <- struct{}{}
				if _, err := io.ReadFull(res.Body, buffer[:len(event)]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

// BenchmarkHopParallel sends the small GET from many clients concurrently.
func BenchmarkHopParallel(b *testing.B) {
	p := startProxy(b, testConfig(plainBackend(b, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })))
	b.ReportAllocs()
	b.SetParallelism(16)
	before := cpu(b)
	b.RunParallel(func(pb *testing.PB) {
		req := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/n/pods/p", nil)
		req = req.WithContext(apirequest.WithUser(b.Context(), alice))
		for pb.Next() {
			w := httptest.NewRecorder()
			if p.ServeHTTP(w, req); w.Code != http.StatusOK {
				b.Errorf("code %d: %s", w.Code, w.Body)
			}
		}
	})
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}
