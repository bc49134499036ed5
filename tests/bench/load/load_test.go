package load_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/bench/floor"
	"triune.dev/tests/bench/load"
)

// server runs the floor in this process.
func server(t *testing.T) load.Target {
	t.Helper()
	s := httptest.NewUnstartedServer(floor.Handler())
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return load.Target{URL: s.URL, TLS: s.Client().Transport.(*http.Transport).TLSClientConfig}
}

func dial(t *testing.T, n int, target load.Target) []*load.Conn {
	conns := load.DialAll(n, target)
	t.Cleanup(func() { load.CloseAll(conns) })
	return conns
}

func TestAnswersAreChecked(t *testing.T) {
	conn := dial(t, 1, server(t))[0]
	for name, test := range map[string]struct {
		request load.Request
		want    error
	}{
		"as expected":      {load.Request{Path: "/bytes/100", MinSize: 100, MaxSize: 100}, nil},
		"expected failure": {load.Request{Path: "/bytes/1?status=409", Status: 409}, nil},
		"too small":        {load.Request{Path: "/bytes/99", MinSize: 100}, load.ErrAnswer},
		"too large":        {load.Request{Path: "/bytes/101", MaxSize: 100}, load.ErrAnswer},
		"another status":   {load.Request{Path: "/bytes/100?status=500"}, load.ErrAnswer},
		"created, not OK":  {load.Request{Path: "/bytes/100?status=201"}, load.ErrAnswer},
	} {
		if _, err := conn.Do(t.Context(), test.request, make([]byte, 64)); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
		if _, err := conn.Get(t.Context(), test.request); !errors.Is(err, test.want) {
			t.Errorf("%s, with its body: got %v, want %v", name, err, test.want)
		}
	}
}

func TestClosedLoopAnswersEveryRequestOnce(t *testing.T) {
	conns := dial(t, 4, server(t))
	seen := make([]int, 50)
	result, err := load.Closed{MinOps: 50, MaxOps: 50}.Run(t.Context(), conns, func(i int) load.Request {
		seen[i]++ // each i belongs to one goroutine
		return load.Request{Path: "/bytes/1000", MinSize: 1000}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range seen {
		if n != 1 {
			t.Errorf("request %d was made %d times", i, n)
		}
	}
	if result.Ops != 50 || result.Bodies != 50_000 || result.Wire < result.Bodies || result.P50 > result.P99 {
		t.Errorf("got %+v", result)
	}
}

func TestOneWrongAnswerLeavesNoResult(t *testing.T) {
	conns := dial(t, 4, server(t))
	result, err := load.Closed{For: time.Minute, MaxOps: 1000}.Run(t.Context(), conns, func(i int) load.Request {
		if i == 20 {
			return load.Request{Path: "/bytes/10?status=503"}
		}
		return load.Request{Path: "/bytes/10"}
	})
	if !errors.Is(err, load.ErrAnswer) || result != (load.Result{}) {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestPacedKeepsItsRateAndEndsWithItsContext(t *testing.T) {
	conns := dial(t, 4, server(t))
	next := func(int) load.Request { return load.Request{Path: "/bytes/10"} }
	result, err := load.Paced{PerSecond: 1000, For: 50 * time.Millisecond}.Run(t.Context(), conns, next)
	if err != nil || result.Ops != 50 {
		t.Errorf("got %d operations, %v; want the 50 that were due", result.Ops, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (load.Paced{PerSecond: 1, For: time.Hour}).Run(ended, conns, next); err != nil {
		t.Errorf("after its context has ended: %v", err)
	}
}

func TestFanSeesEveryEvent(t *testing.T) {
	target := server(t)
	fan, err := load.Watch(t.Context(), 150, load.StreamsPerConn, load.Request{Path: "/watch"}, target)
	if err != nil {
		t.Fatal(err)
	}
	defer fan.Close()
	writer := dial(t, 1, target)[0]
	var written []uint64
	for range 5 {
		fan.Wrote()
		body, err := writer.Get(t.Context(), load.Request{Method: "POST", Path: "/event?size=20000"})
		if err != nil {
			t.Fatal(err)
		}
		revision, err := load.RevisionOf(body)
		if err != nil {
			t.Fatal(err)
		}
		written = append(written, revision)
		if err := fan.Await(t.Context(), len(written)); err != nil {
			t.Fatal(err)
		}
	}
	fan.Close()
	if events, bytes := fan.Delivered(); events != 150*5 || bytes != events*20000 {
		t.Errorf("%d events of %d bytes", events, bytes)
	}
	if err := fan.Verify(written); err != nil {
		t.Error(err)
	}
	if p50, p99 := fan.Latencies(); p50 <= 0 || p99 < p50 {
		t.Errorf("latencies %v, %v", p50, p99)
	}
	// The same fan with an event that was never sent.
	if err := fan.Verify(append(written, 99)); err == nil || !strings.Contains(err.Error(), "150 missing") {
		t.Errorf("an event that nobody got: %v", err)
	}
}

func TestWatchThatIsRefusedIsAnError(t *testing.T) {
	if _, err := load.Watch(t.Context(), 3, load.StreamsPerConn, load.Request{Path: "/bytes/10?status=429"}, server(t)); !errors.Is(err, load.ErrAnswer) {
		t.Errorf("got %v", err)
	}
}

func TestFanWhoseWatchesEndDoesNotWaitForEver(t *testing.T) {
	fan, err := load.Watch(t.Context(), 2, load.StreamsPerConn, load.Request{Path: "/bytes/0"}, server(t))
	if err != nil {
		t.Fatal(err)
	}
	defer fan.Close()
	if err := fan.Await(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("got %v", err)
	}
}
