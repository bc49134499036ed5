package h2

import (
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// To compare with Go's server: go test -run NONE -bench . ./shared/transport/h2

var servers = []struct {
	name  string
	serve func(testing.TB, http.Handler) *httptest.Server
}{{"go", startGo}, {"ours", startOurs}}

// cpu returns the processor time of the process, including its clients.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measured runs a benchmark on both servers.
func measured(b *testing.B, handler http.Handler, run func(b *testing.B, s *httptest.Server)) {
	for _, s := range servers {
		b.Run(s.name, func(b *testing.B) {
			server := s.serve(b, handler)
			b.ReportAllocs()
			begin := cpu()
			run(b, server)
			b.ReportMetric(float64(cpu()-begin)/float64(b.N), "cpu-ns/op")
		})
	}
}

func get(b *testing.B, client *http.Client, url string) {
	resp, err := client.Get(url)
	if err != nil {
		b.Error(err)
		return
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // the body was read
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkGet(b *testing.B) {
	body := pattern(2000)
	measured(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}), func(b *testing.B, s *httptest.Server) {
		client := s.Client()
		for b.Loop() {
			get(b, client, s.URL)
		}
	})
}

func BenchmarkList(b *testing.B) {
	body := pattern(15 << 20)
	measured(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}), func(b *testing.B, s *httptest.Server) {
		client := s.Client()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			get(b, client, s.URL)
		}
	})
}

// BenchmarkEvent sends an event to 500 watches, 100 per connection.
func BenchmarkEvent(b *testing.B) {
	const connections, streams = 5, 100
	bell := newBell()
	event := pattern(500)
	measured(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rung := bell.next()
		flush(w)
		for {
			select {
			case <-rung:
			case <-r.Context().Done():
				return
			}
			rung = bell.next()
			_, _ = w.Write(event)
			flush(w)
		}
	}), func(b *testing.B, s *httptest.Server) {
		var bodies []io.ReadCloser
		for range connections {
			transport := s.Client().Transport.(*http.Transport).Clone()
			defer transport.CloseIdleConnections()
			for range streams {
				resp, err := (&http.Client{Transport: transport}).Get(s.URL)
				if err != nil {
					b.Fatal(err)
				}
				defer resp.Body.Close()
				bodies = append(bodies, resp.Body)
			}
		}
		into := make([]byte, len(event))
		for b.Loop() {
			bell.ring()
			for _, body := range bodies {
				if _, err := io.ReadFull(body, into); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// Sending an event must not allocate: it happens for every watch.
func TestEventDoesNotAllocate(t *testing.T) {
	flushed := make(chan float64, 1)
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		event := pattern(500)
		flush(w)
		flushed <- testing.AllocsPerRun(1000, func() {
			_, _ = w.Write(event)
			flush(w)
		})
	})), window(maxWindow))
	p.ok(p.framer.WriteWindowUpdate(0, 1<<30))
	p.get(1, "/")
	// Nobody reads in the meantime: 500 kB fit into the buffers of the system.
	if n := within(t, flushed, "the handler"); n > 0 {
		t.Errorf("%v allocations for an event", n)
	}
}
