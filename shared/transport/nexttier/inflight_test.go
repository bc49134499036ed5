package nexttier

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestDeadlineOfTheRequestIs504(t *testing.T) {
	b := startBackend(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f := startFront(t, startProxy(t, testConfig(b.url())), func(ctx context.Context) context.Context {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		context.AfterFunc(ctx, cancel)
		return ctx
	})
	a := f.get(t, "/api/v1/pods")
	if a.code != http.StatusGatewayTimeout || a.status.Reason != "Timeout" || !strings.Contains(a.status.Message, "core tier") {
		t.Errorf("answer %+v", a)
	}
}

func TestLimitOfRequestsInFlight(t *testing.T) {
	release := make(chan struct{})
	var entered atomic.Int64
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			w.(http.Flusher).Flush()
		}
		entered.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	c := testConfig(b.url())
	c.MaxInFlight = 2
	f := startFront(t, startProxy(t, c))
	var wg sync.WaitGroup
	// Established watches do not count.
	ctx, cancel := context.WithCancel(t.Context())
	defer opened(t, f, ctx, "/api?watch=1").Close()
	for range 2 {
		wg.Go(func() {
			if a := f.get(t, "/api"); a.code != 200 {
				t.Errorf("answer %+v", a)
			}
		})
	}
	eventually(t, "three requests are in flight", func() bool { return entered.Load() == 3 })
	a := f.get(t, "/api")
	if a.code != http.StatusTooManyRequests || a.status.Reason != "TooManyRequests" || a.header.Get("Retry-After") != "1" {
		t.Errorf("answer %+v", a)
	}
	close(release)
	cancel()
	wg.Wait()
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("answer %+v", a)
	}
}
