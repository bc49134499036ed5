package filters

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"triune.dev/shared/transport/h2"
	"triune.dev/shared/transport/loopback"
)

// upstreamTimeout does the work of withTimeout with the filters of k8s.io/apiserver.
func upstreamTimeout(handler http.Handler, g *genericapiserver.Config) http.Handler {
	handler = genericfilters.WithTimeoutForNonLongRunningRequests(handler, g.LongRunningFunc)
	handler = filters.WithRequestDeadline(handler, g.AuditBackend, g.AuditPolicyRuleEvaluator, g.LongRunningFunc, g.Serializer, g.RequestTimeout)
	return genericfilters.WithWaitGroup(handler, g.LongRunningFunc, g.NonLongRunningRequestWaitGroup)
}

// TestTimeoutAsUpstream: requests end as with upstream's filters, however their handlers
// end.
func TestTimeoutAsUpstream(t *testing.T) {
	// late waits for the deadline, and reports which operations succeed after it.
	late := func(before func(http.ResponseWriter), results chan<- string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			before(w)
			<-req.Context().Done()
			for len(w.Header()) > 0 { // until the filter has answered: there is X-Outer
				time.Sleep(time.Millisecond)
			}
			_, err := w.Write([]byte("late"))
			w.Header().Set("X-Late", "1")
			w.WriteHeader(http.StatusTeapot)
			w.(http.Flusher).Flush()
			results <- fmt.Sprintf("%v %t %v", err, errors.Is(err, http.ErrHandlerTimeout), w.Header())
		}
	}
	quiet := func(w http.ResponseWriter) { w.Header().Set("X-Set", "never sent") }
	for _, test := range []struct {
		name, query string
		// long sets a timeout that no handler reaches.
		long   bool
		handle func(results chan<- string) http.HandlerFunc
	}{
		{"an answer", "", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("X-Set", "1")
				w.Header().Del("X-Outer")
				w.WriteHeader(http.StatusAccepted)
				w.WriteHeader(http.StatusTeapot)
				fmt.Fprint(w, "fine ", req.Header.Get("X-Asked"))
			}
		}},
		{"nothing", "", true, func(chan<- string) http.HandlerFunc { return func(http.ResponseWriter, *http.Request) {} }},
		{"flushed", "", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "a")
				w.(http.Flusher).Flush()
				fmt.Fprint(w, "b")
			}
		}},
		{"a deadline of its own", "timeout=7m", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				deadline, _ := req.Context().Deadline()
				fmt.Fprint(w, time.Until(deadline).Round(time.Minute))
			}
		}},
		{"a deadline with an escape", "tim%65out=7m", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				deadline, _ := req.Context().Deadline()
				fmt.Fprint(w, time.Until(deadline).Round(time.Minute))
			}
		}},
		{"no deadline of its own", "", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				deadline, _ := req.Context().Deadline()
				fmt.Fprint(w, time.Until(deadline).Round(time.Minute))
			}
		}},
		{"an invalid timeout", "timeout=soon", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "handled") }
		}},
		{"a panic", "", true, func(chan<- string) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic("oh") }
		}},
		{"aborted", "", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "half")
				panic(http.ErrAbortHandler)
			}
		}},
		{"late", "", false, func(results chan<- string) http.HandlerFunc { return late(quiet, results) }},
		{"late with a timeout of its own", "timeout=50ms", true, func(results chan<- string) http.HandlerFunc { return late(quiet, results) }},
		{"late, after a part", "", false, func(results chan<- string) http.HandlerFunc {
			return late(func(w http.ResponseWriter) {
				fmt.Fprint(w, "part")
				w.(http.Flusher).Flush()
			}, results)
		}},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2: %t", test.name, http2), func(t *testing.T) {
				g := newTier(t, nil).generic
				g.RequestTimeout = 100 * time.Millisecond
				if test.long {
					g.RequestTimeout = 10 * time.Minute
				}
				outcome := func(filter func(http.Handler, *genericapiserver.Config) http.Handler) string {
					results := make(chan string, 1)
					handler := filter(test.handle(results), g)
					outer := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						w.Header().Set("X-Outer", "1")
						handler.ServeHTTP(w, req)
					})
					server := httptest.NewUnstartedServer(filters.WithRequestInfo(outer, g.RequestInfoResolver))
					server.EnableHTTP2 = http2
					server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
					server.StartTLS()
					defer server.Close()
					got := answer(t, server, "/api/v1/nodes?"+test.query)
					if strings.HasPrefix(test.name, "late") {
						got += "\nthe handler: " + <-results
					}
					return got
				}
				if diff := cmp.Diff(outcome(upstreamTimeout), outcome(withTimeout)); diff != "" {
					t.Errorf("(-upstream's filters +ours):\n%s", diff)
				}
			})
		}
	}
}

// answer describes the answer that a client receives, without its date.
func answer(t *testing.T, server *httptest.Server, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Asked", "asked")
	res, err := server.Client().Do(req)
	if err != nil {
		return "no answer"
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	res.Header.Del("Date")
	res.Header.Del("Connection") // differs while a handler still runs
	return fmt.Sprintf("%d %v %q, cut off: %t", res.StatusCode, res.Header, body, err != nil)
}

// TestClientsThatDoNotReadKeepNoHandler: a handler whose client does not read its answer
// ends at the deadline.
func TestClientsThatDoNotReadKeepNoHandler(t *testing.T) {
	for _, way := range []string{"HTTP/1.1", "HTTP/2", "Go's HTTP/2"} {
		t.Run(way, func(t *testing.T) {
			g := newTier(t, nil).generic
			g.RequestTimeout = 500 * time.Millisecond
			ended := make(chan struct{})
			handler := withTimeout(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(ended)
				for p := make([]byte, 1<<20); ; {
					if _, err := w.Write(p); err != nil {
						return
					}
				}
			}), g)
			client, url := reach(t, way, filters.WithRequestInfo(handler, g.RequestInfoResolver))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/nodes", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				t.Fatal("the handler still waits for its client")
			}
			g.NonLongRunningRequestWaitGroup.Wait()
		})
	}
}

// TestLateHandlerIsAnsweredFor: the client receives its whole answer while the handler still
// runs and changes the headers of its request and of its answer. A shutdown does not wait
// for that handler.
func TestLateHandlerIsAnsweredFor(t *testing.T) {
	for _, way := range []string{"HTTP/1.1", "HTTP/2", "Go's HTTP/2", "in the process"} {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the answer begun: %t", way, begun), func(t *testing.T) {
				g := newTier(t, nil).generic
				g.RequestTimeout = 50 * time.Millisecond
				answered, ended := make(chan struct{}), make(chan struct{})
				handler := withTimeout(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					defer close(ended)
					header := w.Header()
					if begun {
						fmt.Fprint(w, "part")
						w.(http.Flusher).Flush()
					}
					for len(w.Header()) > 0 { // until the filter has answered
						req.Header.Set("Content-Type", "changed")
						header.Set("X-Late", "1")
					}
					_, _ = w.Write([]byte("late"))
					w.(http.Flusher).Flush()
					<-answered
				}), g)
				outermost := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					w.Header().Set("X-Outer", "1")
					handler.ServeHTTP(w, req)
					if got := w.Header().Get("X-Late"); got != "" && !begun {
						t.Error("the answer has a header of the handler that was late")
					}
				})
				want := "504 1"
				if begun {
					want = "200 1, cut off"
				}
				client, url := reach(t, way, filters.WithRequestInfo(outermost, g.RequestInfoResolver))
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, url+"/api/v1/nodes/a", nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				got := fmt.Sprintf("%d %s", res.StatusCode, res.Header.Get("X-Outer"))
				if _, err := io.ReadAll(res.Body); err != nil {
					got += ", cut off"
				}
				if got != want {
					t.Errorf("%s, want %s", got, want)
				}
				g.NonLongRunningRequestWaitGroup.Wait()
				select {
				case <-ended:
					t.Error("the handler has ended")
				default:
				}
				close(answered)
				<-ended
			})
		}
	}
}

// TestHandlerThatGivesUp: a handler that returns at the deadline without an answer is
// answered for, too.
func TestHandlerThatGivesUp(t *testing.T) {
	g := newTier(t, nil).generic
	g.RequestTimeout = time.Millisecond
	handler := withTimeout(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }), g)
	for range 200 {
		if w := do(filters.WithRequestInfo(handler, g.RequestInfoResolver), newRequest("GET", "/api/v1/nodes")); w.Code != http.StatusGatewayTimeout {
			t.Fatalf("status %d, want 504", w.Code)
		}
	}
}

// reach serves handler over the given protocol, and returns a client and the address.
func reach(t *testing.T, way string, handler http.Handler) (*http.Client, string) {
	t.Helper()
	if way == "in the process" {
		return &http.Client{Transport: loopback.New(func() http.Handler { return handler })}, "http://triune"
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	options := h2.Options{MaxConcurrentStreams: 10, MaxUploadPerStream: 1 << 20, IdleTimeout: time.Minute}
	switch way {
	case "HTTP/2":
		server.Listener = h2.Listener{Listener: server.Listener}
		h2.Configure(server.Config, options)
		server.TLS = &tls.Config{NextProtos: []string{"h2"}}
	case "Go's HTTP/2":
		if err := h2.ConfigureGo(server.Config, options); err != nil {
			t.Fatal(err)
		}
		server.TLS = &tls.Config{NextProtos: []string{"h2"}}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	server.Client().Transport.(*http.Transport).ForceAttemptHTTP2 = way != "HTTP/1.1"
	return server.Client(), server.URL
}

// TestRefusedWhileShuttingDown: requests that arrive after a shutdown has begun to wait are
// refused, as by upstream's filters.
func TestRefusedWhileShuttingDown(t *testing.T) {
	for _, path := range []string{"/api/v1/nodes", "/api/v1/nodes?timeout=1s", "/healthz"} {
		var got []string
		for _, filter := range []func(http.Handler, *genericapiserver.Config) http.Handler{upstreamTimeout, withTimeout} {
			g := newTier(t, nil).generic
			g.NonLongRunningRequestWaitGroup.Wait()
			handler := filter(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }), g)
			w := do(filters.WithRequestInfo(handler, g.RequestInfoResolver), newRequest("GET", path))
			got = append(got, fmt.Sprint(w.Code, w.Header(), w.Body))
		}
		if diff := cmp.Diff(got[0], got[1]); diff != "" {
			t.Errorf("%s (-upstream's filters +ours):\n%s", path, diff)
		}
	}
}
