package chain

import (
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
)

// upstreamBounded is what bounded does, of the filters of k8s.io/apiserver.
func upstreamBounded(handler http.Handler, g *genericapiserver.Config) http.Handler {
	handler = genericfilters.WithTimeoutForNonLongRunningRequests(handler, g.LongRunningFunc)
	handler = filters.WithRequestDeadline(handler, g.AuditBackend, g.AuditPolicyRuleEvaluator, g.LongRunningFunc, g.Serializer, g.RequestTimeout)
	return genericfilters.WithWaitGroup(handler, g.LongRunningFunc, g.NonLongRunningRequestWaitGroup)
}

// TestBoundedAsUpstream: requests end as they do with upstream's filters, in whichever way
// their handlers end.
func TestBoundedAsUpstream(t *testing.T) {
	// late waits for the deadline, and says what it can do then.
	late := func(before func(http.ResponseWriter), said chan<- string) http.HandlerFunc {
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
			said <- fmt.Sprintf("%v %t %v", err, errors.Is(err, http.ErrHandlerTimeout), w.Header())
		}
	}
	quiet := func(w http.ResponseWriter) { w.Header().Set("X-Set", "never sent") }
	for _, test := range []struct {
		name, query string
		// long has a timeout that nothing reaches.
		long   bool
		handle func(said chan<- string) http.HandlerFunc
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
		{"a timeout that is none", "timeout=soon", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "handled") }
		}},
		{"a panic", "", true, func(chan<- string) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic("oh") }
		}},
		{"given up", "", true, func(chan<- string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "half")
				panic(http.ErrAbortHandler)
			}
		}},
		{"late", "", false, func(said chan<- string) http.HandlerFunc { return late(quiet, said) }},
		{"late with a timeout of its own", "timeout=50ms", true, func(said chan<- string) http.HandlerFunc { return late(quiet, said) }},
		{"late, after a part", "", false, func(said chan<- string) http.HandlerFunc {
			return late(func(w http.ResponseWriter) {
				fmt.Fprint(w, "part")
				w.(http.Flusher).Flush()
			}, said)
		}},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2: %t", test.name, http2), func(t *testing.T) {
				g := newTier(t, nil).generic
				g.RequestTimeout = 100 * time.Millisecond
				if test.long {
					g.RequestTimeout = 10 * time.Minute
				}
				outcome := func(bound func(http.Handler, *genericapiserver.Config) http.Handler) string {
					said := make(chan string, 1)
					handler := bound(test.handle(said), g)
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
						got += "\nthe handler: " + <-said
					}
					return got
				}
				if diff := cmp.Diff(outcome(upstreamBounded), outcome(bounded)); diff != "" {
					t.Errorf("(-upstream's filters +ours):\n%s", diff)
				}
			})
		}
	}
}

// answer describes what a client gets, but for the date.
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
	return fmt.Sprintf("%d %v %q, cut off: %t", res.StatusCode, res.Header, body, err != nil)
}

// TestLateHandlerHasARequestOfItsOwn: what a handler does to the headers of its request and
// of its answer after the timeout nobody sees, or reads at the same time.
func TestLateHandlerHasARequestOfItsOwn(t *testing.T) {
	g := newTier(t, nil).generic
	g.RequestTimeout = 20 * time.Millisecond
	answered, ended := make(chan struct{}), make(chan struct{})
	handler := bounded(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer close(ended)
		header := w.Header()
		for {
			req.Header.Set("Authorization", "gone")
			header.Set("X-Late", "1")
			select {
			case <-answered:
				return
			default:
			}
		}
	}), g)
	w := httptest.NewRecorder()
	req := newRequest("GET", "/api/v1/nodes", "Authorization: ann")
	withInfo := filters.WithRequestInfo(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handler.ServeHTTP(w, req)
		for range 1000 {
			if got := req.Header.Get("Authorization"); got != "ann" {
				t.Errorf("the request came with %q, and has %q", "ann", got)
			}
			if got := w.Header().Get("X-Late"); got != "" {
				t.Error("the answer has a header of the handler that was late")
			}
		}
	}), g.RequestInfoResolver)
	withInfo.ServeHTTP(w, req)
	close(answered)
	<-ended
	if w.Code != http.StatusGatewayTimeout {
		t.Errorf("status %d, want 504", w.Code)
	}
}
