package nexttier

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// load sends requests from several goroutines until stopped, and counts the results.
type load struct {
	ok, failed atomic.Int64
	stop       context.CancelFunc
	wg         sync.WaitGroup
}

func startLoad(t *testing.T, f *front, request func(ctx context.Context, n int64) *http.Request) *load {
	l := &load{}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	var n atomic.Int64
	for range 8 {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				a, err := f.try(request(t.Context(), n.Add(1)))
				if err == nil && a.code == http.StatusOK {
					l.ok.Add(1)
					continue
				}
				if l.failed.Add(1) <= 5 {
					t.Logf("failed: %v %d %s", err, a.code, a.body)
				}
			}
		})
	}
	return l
}

func (l *load) end() { l.stop(); l.wg.Wait() }

func (l *load) reached(t *testing.T, more int64) {
	t.Helper()
	goal := l.ok.Load() + more
	eventually(t, "enough requests answered", func() bool { return l.ok.Load() >= goal })
}

func TestReplicaKilledUnderLoadFailsNoIdempotentRequest(t *testing.T) {
	var hits [2]atomic.Int64
	var backends [2]*backend
	for i := range backends {
		backends[i] = startBackend(t, func(w http.ResponseWriter, _ *http.Request) { hits[i].Add(1); _, _ = io.WriteString(w, "ok") })
	}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	l := startLoad(t, f, func(ctx context.Context, n int64) *http.Request {
		req, _ := http.NewRequestWithContext(ctx, []string{"GET", "HEAD", "OPTIONS"}[n%3], f.URL+"/api/v1/pods", nil)
		return req
	})
	for round := range 6 {
		b := backends[round%2]
		l.reached(t, 300)
		b.kill()
		l.reached(t, 300)
		b.start()
		eventually(t, "killed replica is ready again", func() bool { return conditionOf(p, b.address) == ready })
	}
	l.end()
	if l.failed.Load() != 0 {
		t.Errorf("%d requests failed, %d did not", l.failed.Load(), l.ok.Load())
	}
	before := [2]int64{hits[0].Load(), hits[1].Load()}
	for range 20 {
		f.get(t, "/api/v1/pods")
	}
	for i := range hits {
		if hits[i].Load() == before[i] {
			t.Errorf("replica %d gets no requests though it is ready", i)
		}
	}
}

// executions counts how often backends have executed each request, identified by its body.
type executions struct {
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func (e *executions) execute(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // half a request is not processed
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counts == nil {
		e.counts = map[string]int{}
	}
	e.counts[string(body)]++
	_, _ = io.WriteString(w, "ok")
}

// once checks that no request was executed more than once.
func (e *executions) once(t *testing.T) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for body, n := range e.counts {
		if n != 1 {
			t.Errorf("%s was executed %d times", body, n)
		}
	}
}

func TestDrainedReplicaFailsNoRequestAtAll(t *testing.T) {
	var executed executions
	backends := [2]*backend{startBackend(t, executed.execute), startBackend(t, executed.execute)}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	l := startLoad(t, f, func(ctx context.Context, n int64) *http.Request {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+"/api/v1/pods", strings.NewReader(fmt.Sprintf("object %d", n)))
		return req
	})
	for round := range 4 {
		b := backends[round%2]
		l.reached(t, 300)
		b.drain()
		l.reached(t, 300)
		b.start()
		eventually(t, "drained replica is ready again", func() bool { return conditionOf(p, b.address) == ready })
	}
	l.end()
	if l.failed.Load() != 0 {
		t.Errorf("%d requests failed, %d did not", l.failed.Load(), l.ok.Load())
	}
	executed.once(t)
}

func TestPostIsNeverExecutedTwice(t *testing.T) {
	var executed executions
	backends := [2]*backend{startBackend(t, executed.execute), startBackend(t, executed.execute)}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	var mentions atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	var n, ok atomic.Int64
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/api/v1/pods", strings.NewReader(fmt.Sprintf("object %d", n.Add(1))))
				a, err := f.try(req)
				switch {
				case err != nil:
					t.Errorf("the front broke: %v", err)
				case a.code == http.StatusOK:
					ok.Add(1)
				case a.code != http.StatusServiceUnavailable || a.status.Reason != metav1.StatusReasonServiceUnavailable:
					t.Errorf("code %d: %s", a.code, a.body)
				case strings.Contains(a.status.Message, "may or may not"):
					mentions.Add(1)
					if a.header.Get("Retry-After") != "" {
						t.Error("a client would send it again")
					}
				}
			}
		})
	}
	for round := range 10 {
		b := backends[round%2]
		goal := ok.Load() + 100
		eventually(t, "requests answered", func() bool { return ok.Load() >= goal })
		b.kill()
		b.start()
	}
	stop()
	wg.Wait()
	executed.once(t)
	t.Logf("%d answered, %d left in doubt", ok.Load(), mentions.Load())
}
