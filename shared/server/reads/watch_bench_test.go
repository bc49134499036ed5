package reads

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
)

// Run with
//
//	go test -run '^$' -bench Watch ./shared/server/reads
//
// etcd and the writer run in the process of the benchmark.

// BenchmarkWatchDelivery delivers one change, or four in one flush, to a watcher whose
// output is discarded.
func BenchmarkWatchDelivery(b *testing.B) {
	w := newHistoryWorld(b, bytecache.Config{}).pods(b).watched(b, false)
	w.create(b, fullPod(7))
	from := w.revision(b)
	for n := range 4 {
		w.change(b, "team-07", "web-7d4f8b9c5d-00007", func(obj kruntime.Object) { obj.(*corev1.Pod).Labels["n"] = strconv.Itoa(n) })
	}
	w.revision(b)
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", asTable} {
		for _, query := range []string{"", "&labelSelector=app%3Dapp-07", "&fieldSelector=spec.nodeName%3Dnode-007"} {
			for _, few := range []int{1, 4} {
				b.Run(fmt.Sprintf("%s%s/events=%d", accept, query, few), func(b *testing.B) {
					s, _ := w.direct(b, fmt.Sprintf("/api/v1/pods?watch=1&resourceVersion=%d%s", from, query), accept)
					changes, err := s.watch.Next(b.Context())
					if err != nil || len(changes.List) != 4 {
						b.Fatal(len(changes.List), err)
					}
					some := bytecache.Changes{List: changes.List[:few], Revision: changes.List[few-1].Revision}
					b.ReportAllocs()
					for b.Loop() {
						if _, err := s.deliver(some); err != nil {
							b.Fatal(err)
						}
						s.flush()
					}
				})
			}
		}
	}
}

// BenchmarkWatch500 runs 500 watchers of all pods over TLS and HTTP/2, 50 per connection.
// They are pushed to while they sleep, woken, or served by k8s.io/apiserver and Go's
// HTTP/2. The clients are another process: the figures are the CPU time of the server, etcd
// and the writer, minus that of the same writes without watchers.
func BenchmarkWatch500(b *testing.B) {
	const watchers = 500
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", asTable} {
		for _, by := range []string{"pushed", "woken", "upstream"} {
			b.Run(accept+"/"+by, func(b *testing.B) {
				w := newHistoryWorld(b, bytecache.Config{}).pods(b).watched(b, false)
				w.create(b, fullPod(7))
				server := w.pushing
				switch by {
				case "woken":
					handler := func(rw http.ResponseWriter, req *http.Request) { w.handler(withoutTryWrite{rw}, req) }
					server.Config.Handler = w.route(handler, handler)
				case "upstream":
					server = httptest.NewUnstartedServer(w.theirs.Config.Handler)
					server.EnableHTTP2 = true
					server.StartTLS()
					b.Cleanup(server.Close)
				}
				b.Cleanup(server.CloseClientConnections)
				written := int64(0)
				write := func(burst int) {
					for range burst {
						written++
						w.change(b, "team-07", "web-7d4f8b9c5d-00007", func(obj kruntime.Object) {
							obj.(*corev1.Pod).Labels["n"] = strconv.FormatInt(written, 10)
						})
					}
				}
				began := cpu()
				write(200)
				alone := (cpu() - began) / 200
				before, opening := resident(), cpu()
				from := written
				clients := startClients(b, fmt.Sprintf("%s/api/v1/pods?watch=1&resourceVersion=%d", server.URL, w.revision(b)), accept, watchers)
				b.Logf("opening a watch: %d µs, resident for each: %d bytes", (cpu()-opening).Microseconds()/watchers, (resident()-before)/watchers)
				for _, burst := range []int{1, 4} {
					b.Run(fmt.Sprintf("burst=%d", burst), func(b *testing.B) {
						began, first := cpu(), written
						for b.Loop() {
							write(burst)
							clients.await((written - from) * watchers)
						}
						events := written - first
						spent := cpu() - began - time.Duration(events)*alone
						b.ReportMetric(float64(spent.Nanoseconds())/1000/float64(events)/watchers, "cpu-µs/delivery")
					})
				}
			})
		}
	}
}

// withoutTryWrite is a response that only its handler can write to.
type withoutTryWrite struct{ http.ResponseWriter }

func (w withoutTryWrite) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

// clients are watchers in another process.
type clients struct {
	b       *testing.B
	arrived *bufio.Scanner
}

func startClients(b *testing.B, url, accept string, watchers int) clients {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^TestWatchClients$", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), "WATCH_URL="+url, "WATCH_ACCEPT="+accept, "WATCHERS="+strconv.Itoa(watchers))
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c := clients{b, bufio.NewScanner(out)}
	c.await(0)
	return c
}

// await blocks until the clients have received so many events in all.
func (c clients) await(events int64) {
	for c.arrived.Scan() {
		if n, err := strconv.ParseInt(c.arrived.Text(), 10, 64); err == nil && n >= events {
			return
		}
	}
	c.b.Fatal("the clients are gone")
}

// TestWatchClients is the process of the clients. It does nothing by itself.
func TestWatchClients(t *testing.T) {
	url := os.Getenv("WATCH_URL")
	if url == "" {
		return
	}
	watchers, err := strconv.Atoi(os.Getenv("WATCHERS"))
	if err != nil {
		t.Fatal(err)
	}
	accept := os.Getenv("WATCH_ACCEPT")
	var arrived atomic.Int64
	var client *http.Client
	for n := range watchers {
		if n%50 == 0 {
			client = &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		}
		resp := open(t, client, t.Context(), url, accept)
		go countFrames(resp.Body, &arrived, strings.HasPrefix(accept, "application/json"))
	}
	fmt.Println(0)
	for printed := int64(0); ; time.Sleep(time.Millisecond) {
		if now := arrived.Load(); now != printed {
			printed = now
			fmt.Println(now)
		}
	}
}

// countFrames counts the frames of a stream.
func countFrames(body io.Reader, arrived *atomic.Int64, json bool) {
	buffer := make([]byte, 32<<10)
	pending := 0
	for {
		n, err := body.Read(buffer)
		p := buffer[:n]
		for len(p) > 0 {
			if json {
				arrived.Add(int64(bytes.Count(p, []byte("\n"))))
				break
			}
			if pending > 0 {
				skip := min(pending, len(p))
				pending -= skip
				p = p[skip:]
				if pending == 0 {
					arrived.Add(1)
				}
				continue
			}
			// A frame's length is never split in this benchmark: it is written with it.
			pending = int(p[0])<<24 | int(p[1])<<16 | int(p[2])<<8 | int(p[3])
			p = p[4:]
		}
		if err != nil {
			return
		}
	}
}

// resident returns the memory of the process.
func resident() int {
	runtime.GC()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.Atoi(strings.Fields(string(data))[1])
	return pages * os.Getpagesize()
}
