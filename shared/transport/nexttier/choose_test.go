package nexttier

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fakeResolver resolves the names in its map.
type fakeResolver map[string]func() []string

func (r fakeResolver) LookupHost(_ context.Context, host string) ([]string, error) {
	if f, ok := r[host]; ok {
		return f(), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func TestReplicasAreResolvedAgain(t *testing.T) {
	hits := map[string]*atomic.Int64{}
	// Two replicas with the same port, like the Pods of a headless Service.
	first := startBackend(t, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(first.address)
	first.kill()
	var replicas []*backend
	for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		hit := new(atomic.Int64)
		hits[ip] = hit
		b := startBackend(t, func(w http.ResponseWriter, r *http.Request) { hit.Add(1); _, _ = io.WriteString(w, r.Host) })
		b.kill()
		b.address = net.JoinHostPort(ip, port)
		b.start()
		replicas = append(replicas, b)
	}
	var addresses atomic.Pointer[[]string]
	addresses.Store(&[]string{"127.0.0.1", "127.0.0.2"})
	c := testConfig("https://replicas.example.test:" + port)
	c.Resolver = fakeResolver{"replicas.example.test": func() []string { return *addresses.Load() }}
	c.ResolveInterval = 20 * time.Millisecond
	p := startProxy(t, c)
	f := startFront(t, p)
	spread := func() (used []string) {
		before := map[string]int64{}
		for ip, n := range hits {
			before[ip] = n.Load()
		}
		for range 20 {
			if a := f.get(t, "/api"); a.code != 200 || a.body != "replicas.example.test:"+port {
				t.Errorf("answer %+v", a)
			}
		}
		for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
			if hits[ip].Load() > before[ip] {
				used = append(used, ip)
			}
		}
		return used
	}
	if got := strings.Join(spread(), " "); got != "127.0.0.1 127.0.0.2" {
		t.Errorf("requests went to %s", got)
	}
	addresses.Store(&[]string{"127.0.0.2", "127.0.0.3", "not an address"})
	eventually(t, "the new replica is found", func() bool { return conditionOf(p, replicas[2].address) == ready })
	if got := strings.Join(spread(), " "); got != "127.0.0.2 127.0.0.3" {
		t.Errorf("requests went to %s", got)
	}
	remaining := (*p.replicas.Load())[0]
	addresses.Store(&[]string{})
	eventually(t, "no replica is left", func() bool { return len(*p.replicas.Load()) == 0 })
	addresses.Store(&[]string{"127.0.0.2"})
	if got := strings.Join(spread(), " "); got != "127.0.0.2" {
		t.Errorf("requests went to %s", got)
	}
	if remaining.pools[short].size() != 0 {
		t.Error("a replica that is gone keeps connections")
	}
}

func TestUnreadyReplicaIsTheLastResort(t *testing.T) {
	var hits [2]atomic.Int64
	var unreadyProbes atomic.Bool
	var backends [2]*backend
	for i := range backends {
		backends[i] = startBackend(t, func(w http.ResponseWriter, _ *http.Request) { hits[i].Add(1); _, _ = io.WriteString(w, "ok") })
	}
	backends[0].probes = func(w http.ResponseWriter, _ *http.Request) {
		if unreadyProbes.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	p := startProxy(t, testConfig(urls(backends[:]...)...))
	f := startFront(t, p)
	unreadyProbes.Store(true)
	eventually(t, "unready", func() bool { return conditionOf(p, backends[0].address) == unready })
	before := hits[0].Load()
	for range 10 {
		f.get(t, "/api")
	}
	if hits[0].Load() != before {
		t.Error("an unready replica got requests though another one was ready")
	}
	backends[1].kill()
	eventually(t, "down", func() bool { return conditionOf(p, backends[1].address) == down })
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("an unready replica was refused: %+v", a)
	}
	if err := p.Check(nil); err != nil {
		t.Errorf("the tier can be reached, but: %v", err)
	}
	unreadyProbes.Store(false)
	eventually(t, "ready", func() bool { return conditionOf(p, backends[0].address) == ready })
}

func TestChoose(t *testing.T) {
	cases := []struct {
		name       string
		candidates []candidate
		start      int
		want       int
	}{
		{"none", nil, 3, -1},
		{"all refused", []candidate{{unreachable: true}, {unreachable: true}}, 0, -1},
		{"in turn", []candidate{{}, {}, {}}, 4, 1},
		{"least in flight", []candidate{{inFlight: 3}, {inFlight: 1}, {inFlight: 2}}, 0, 1},
		{"ready before idle", []candidate{{condition: unready}, {inFlight: 9}}, 0, 1},
		{"unready before down", []candidate{{condition: down}, {condition: unready, inFlight: 9}}, 0, 1},
		{"down rather than none", []candidate{{condition: down}, {unreachable: true}}, 1, 0},
		{"not yet tried before ready", []candidate{{attempts: 1}, {condition: down}}, 0, 1},
		{"tried rather than refused", []candidate{{attempts: 1}, {unreachable: true}}, 1, 0},
		{"trusting before idle", []candidate{{distrusts: true}, {inFlight: 9}}, 0, 1},
	}
	for _, c := range cases {
		if got := choose(c.candidates, c.start); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
