package nexttier

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// link is a network cable between the proxy and a replica. While frozen it forwards nothing, like a
// machine that has stopped.
type link struct {
	listener net.Listener
	mu       sync.Mutex
	thaw     chan struct{} // nil while data flows
	conns    []net.Conn
}

func startLink(t *testing.T, to string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{listener: listener}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		l.unfreeze()
		l.mu.Lock()
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			a, err := listener.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			l.mu.Lock()
			l.conns = append(l.conns, a, b)
			l.mu.Unlock()
			wg.Go(func() { l.copy(a, b) })
			wg.Go(func() { l.copy(b, a) })
		}
	})
	return l
}

func (l *link) copy(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		thaw := l.thaw
		l.mu.Unlock()
		if thaw != nil {
			<-thaw
		}
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thaw = make(chan struct{})
}

func (l *link) unfreeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.thaw != nil {
		close(l.thaw)
		l.thaw = nil
	}
}

func TestSilentReplicaIsAvoided(t *testing.T) {
	slow := make(chan struct{})
	entered := make(chan struct{}, 10)
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- struct{}{}
			select {
			case <-slow:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "ok")
	})
	// The same replica through two links, so that requests can move to the other one.
	first, second := startLink(t, b.address), startLink(t, b.address)
	p := startProxy(t, testConfig("https://"+first.listener.Addr().String(), "https://"+second.listener.Addr().String()))
	f := startFront(t, p)
	eventually(t, "both are ready", func() bool {
		return conditionOf(p, first.listener.Addr().String()) == ready && conditionOf(p, second.listener.Addr().String()) == ready
	})
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- f.get(t, "/slow") }()
		<-entered
	}
	first.freeze()
	eventually(t, "the silent one is down", func() bool { return conditionOf(p, first.listener.Addr().String()) == down })
	start := time.Now()
	for range 20 {
		if a := f.get(t, "/api"); a.code != http.StatusOK {
			t.Errorf("answer %+v", a)
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("20 requests took %v", took)
	}
	// One of the two requests used the frozen link. Only an unanswered ping reveals this; then
	// the request is sent again.
	<-entered
	close(slow)
	for range 2 {
		if a := <-answers; a.code != http.StatusOK {
			t.Errorf("answer %+v", a)
		}
	}
	// With both frozen, the proxy answers within a second.
	second.freeze()
	eventually(t, "both are down", func() bool { return conditionOf(p, second.listener.Addr().String()) == down })
	eventually(t, "no old connection is used", func() bool {
		start := time.Now()
		a := f.get(t, "/api")
		return a.code == http.StatusServiceUnavailable && time.Since(start) < time.Second
	})
	first.unfreeze()
	eventually(t, "it is ready again", func() bool { return conditionOf(p, first.listener.Addr().String()) == ready })
	if a := f.get(t, "/api"); a.code != http.StatusOK {
		t.Errorf("answer %+v", a)
	}
}
