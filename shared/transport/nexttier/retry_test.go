package nexttier

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// breaking reads the request and then breaks the connection without an answer.
func breaking(n *atomic.Int64) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n.Add(1)
		panic(http.ErrAbortHandler)
	}
}

func TestBrokenBeforeTheHeader(t *testing.T) {
	var broken, healthy atomic.Int64
	bad := startBackend(t, breaking(&broken))
	t.Run("a safe request is sent again, and names the tier in the end", func(t *testing.T) {
		broken.Store(0)
		f := startFront(t, startProxy(t, testConfig(bad.url())))
		a := f.get(t, "/api/v1/pods")
		if a.code != 503 || a.status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(a.status.Message, "core tier") || a.header.Get("Retry-After") != "1" {
			t.Errorf("answer %+v", a)
		}
		if broken.Load() != maxAttempts {
			t.Errorf("sent %d times", broken.Load())
		}
	})
	t.Run("an unsafe one is not, and its client is not told to repeat it", func(t *testing.T) {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			broken.Store(0)
			f := startFront(t, startProxy(t, testConfig(bad.url())))
			a := f.do(t, f.request(t, method, "/api/v1/pods", strings.NewReader("{}")))
			if a.code != 503 || a.status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(a.status.Message, "core tier") || a.header.Get("Retry-After") != "" || a.status.Details != nil {
				t.Errorf("%s: answer %+v", method, a)
			}
			if broken.Load() != 1 {
				t.Errorf("%s: sent %d times", method, broken.Load())
			}
		}
	})
	t.Run("a safe one finds the replica that works", func(t *testing.T) {
		good := startBackend(t, func(w http.ResponseWriter, _ *http.Request) { healthy.Add(1); _, _ = io.WriteString(w, "ok") })
		f := startFront(t, startProxy(t, testConfig(bad.url(), good.url())))
		for range 20 {
			if a := f.get(t, "/api/v1/pods"); a.code != 200 {
				t.Errorf("answer %+v", a)
			}
		}
	})
}

// rawServer sends HTTP/2 frame by frame, to fail at certain points.
func rawServer(t *testing.T, serve func(framer *http2.Framer, streamID uint32)) string {
	t.Helper()
	cert, err := testPKI.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = l.Close() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				framer := http2.NewFramer(conn, conn)
				if framer.WriteSettings() != nil {
					return
				}
				for {
					frame, err := framer.ReadFrame()
					if err != nil {
						return
					}
					switch f := frame.(type) {
					case *http2.SettingsFrame:
						if !f.IsAck() {
							_ = framer.WriteSettingsAck()
						}
					case *http2.HeadersFrame:
						serve(framer, f.StreamID)
					}
				}
			})
		}
	})
	return "https://" + l.Addr().String()
}

func respond(framer *http2.Framer, streamID uint32, code string) {
	var block strings.Builder
	_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: code})
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true})
}

// net/http identifies unprocessed requests only by the texts of its errors, so the test compares them
// with its actual errors.
func TestUnprocessedRequestsAreRetried(t *testing.T) {
	refuse := map[string]func(framer *http2.Framer, id uint32){
		"REFUSED_STREAM": func(framer *http2.Framer, id uint32) { _ = framer.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"GOAWAY": func(framer *http2.Framer, id uint32) {
			_ = framer.WriteGoAway(id-1, http2.ErrCodeNo, nil)
		},
	}
	for name, refuse := range refuse {
		t.Run(name, func(t *testing.T) {
			var streams atomic.Int64
			target := rawServer(t, func(framer *http2.Framer, id uint32) {
				if streams.Add(1) == 1 {
					refuse(framer, id)
					return
				}
				respond(framer, id, "200")
				_ = framer.WriteRSTStream(id, http2.ErrCodeNo) // the rest is not needed
			})
			// Do not run it: a probe would take the first stream.
			p, err := New(testConfig(target))
			if err != nil {
				t.Fatal(err)
			}
			defer p.goroutines.Wait()
			defer p.shutdown()
			f := startFront(t, p)
			a := f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader(strings.Repeat("x", replayLimit))))
			if a.code != http.StatusOK || streams.Load() != 2 {
				t.Errorf("answer %+v after %d streams", a, streams.Load())
			}
			// A body beyond the replay limit is not sent again; the client may do so.
			streams.Store(0)
			a = f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader(strings.Repeat("x", 4<<20))))
			switch {
			case a.code == http.StatusOK && streams.Load() == 2: // no part of it had been read
			case a.code == 503 && a.header.Get("Retry-After") == "1" && streams.Load() == 1:
			default:
				t.Errorf("answer %+v after %d streams", a, streams.Load())
			}
		})
	}
	t.Run("other errors prove nothing", func(t *testing.T) {
		for _, err := range []error{
			io.ErrUnexpectedEOF, http2.StreamError{StreamID: 1, Code: http2.ErrCodeInternal}, http2.StreamError{Code: http2.ErrCodeCancel},
			errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1"),
		} {
			if isUnprocessed(err) {
				t.Errorf("%v counts as unprocessed", err)
			}
		}
	})
}

func TestServerThatRefusesEveryStream(t *testing.T) {
	var streams atomic.Int64
	target := rawServer(t, func(framer *http2.Framer, id uint32) {
		streams.Add(1)
		_ = framer.WriteRSTStream(id, http2.ErrCodeRefusedStream)
	})
	p, err := New(testConfig(target))
	if err != nil {
		t.Fatal(err)
	}
	defer p.goroutines.Wait()
	defer p.shutdown()
	unavailable(t, startFront(t, p), http.MethodPost)
	if streams.Load() != maxRefusals {
		t.Errorf("sent %d times", streams.Load())
	}
}
