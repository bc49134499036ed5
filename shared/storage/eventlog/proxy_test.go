package eventlog

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"sync"
	"testing"
)

// proxy forwards TCP connections and can be frozen or cut. Data sent while it is frozen arrives
// later, as with a paused process; data in flight when it is cut is lost.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	frozen  chan struct{}         // nil or open while frozen; guarded by mu
	broken  bool                  // guarded by mu
	refused int                   // connections since it was cut; guarded by mu
	conns   map[net.Conn]struct{} // guarded by mu
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]struct{}{}}
	go p.serve()
	t.Cleanup(func() {
		_ = l.Close()
		p.thaw()
		p.cut()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.broken {
			p.refused++
			_ = in.Close()
			_ = out.Close()
		} else {
			p.conns[in], p.conns[out] = struct{}{}, struct{}{}
			go p.pass(in, out)
			go p.pass(out, in)
		}
		p.mu.Unlock()
	}
}

func (p *proxy) pass(from, to net.Conn) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, from)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.wait()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) wait() {
	p.mu.Lock()
	frozen := p.frozen
	p.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// cut breaks all connections, and refuses new ones until mend is called.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.refused = true, 0
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = false
}

// passes reports whether a connection exists, and how many were refused since the proxy was
// cut.
func (p *proxy) passes() (connected bool, refused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) > 0, p.refused
}

// links are the proxies between processes, one for each client and target.
type links map[link]*proxy

type link struct{ from, to int }

// newLinks puts proxies in front of targets, the addresses of as many processes.
func newLinks(t testing.TB, targets []string) links {
	t.Helper()
	l := links{}
	for from := range targets {
		for to, target := range targets {
			if from != to {
				l[link{from, to}] = newProxy(t, target)
			}
		}
	}
	return l
}

// between returns both proxies between two processes.
func (l links) between(a, b int) []*proxy { return []*proxy{l[link{a, b}], l[link{b, a}]} }

// forward serves an HTTP proxy to one of the processes and returns its URL. The proxy resolves
// the names of the others by the links.
func (l links) forward(t testing.TB, from int, names []string) string {
	t.Helper()
	quiet := log.New(io.Discard, "", 0)
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		p := l[link{from, slices.Index(names, addr)}]
		if p == nil {
			return nil, fmt.Errorf("there is no way from %d to %s", from, addr)
		}
		return (&net.Dialer{}).DialContext(ctx, network, p.addr())
	}
	s := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, FlushInterval: -1, ErrorLog: quiet, Transport: &http.Transport{DialContext: dial},
	})
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}
