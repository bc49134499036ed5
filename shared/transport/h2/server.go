package h2

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Options bound what a client may do.
type Options struct {
	// MaxConcurrentStreams of a connection.
	MaxConcurrentStreams int
	// MaxUploadPerStream is how many bytes of a body may come before the handler reads
	// them, and how large a frame may be; from 16 KiB to below 16 MiB.
	MaxUploadPerStream int
	// IdleTimeout ends connections without requests; greater than 0.
	IdleTimeout time.Duration
}

// window is what all streams of a connection may send, in bytes.
func (o Options) connWindow() int64 {
	return min(max(int64(o.MaxUploadPerStream)*int64(o.MaxConcurrentStreams), defaultWindow), maxWindow)
}

// Configure makes hs speak our HTTP/2 with clients that ask for it by ALPN. Call it before
// the server serves. Its Shutdown waits for requests over HTTP/2, too. Of its fields Handler,
// TLSConfig and MaxHeaderBytes hold for HTTP/2; there is no timeout for reading or
// writing but those that handlers set.
func Configure(hs *http.Server, o Options) {
	s := &server{Options: o, http: hs, conns: map[*conn]struct{}{}}
	if hs.TLSConfig == nil {
		hs.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if !slices.Contains(hs.TLSConfig.NextProtos, "h2") {
		hs.TLSConfig.NextProtos = append([]string{"h2"}, hs.TLSConfig.NextProtos...)
	}
	hs.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, c *tls.Conn, handler http.Handler) {
			state := c.ConnectionState()
			s.serve(c, c.NetConn(), &state, handler)
		},
	}
	hs.RegisterOnShutdown(s.startShutdown)
}

// server knows the connections of an [http.Server].
type server struct {
	Options
	http    *http.Server
	workers workers

	mu      sync.Mutex
	conns   map[*conn]struct{} // guarded by mu
	shuttingDown bool               // guarded by mu
}

// serve returns when the connection is over. Below is what nc writes to, state that of TLS;
// nil where nc is no connection of TLS.
func (s *server) serve(nc, below net.Conn, state *tls.ConnectionState, handler http.Handler) {
	s.newConn(nc, below, state, handler).serve()
}

func (s *server) newConn(nc, below net.Conn, state *tls.ConnectionState, handler http.Handler) *conn {
	ctx := context.WithValue(context.Background(), http.ServerContextKey, s.http)
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, nc.LocalAddr())
	c := &conn{
		server: s, net: nc, rawConn: below, tls: state, remote: nc.RemoteAddr().String(), handler: handler, ctx: ctx,
		streams: map[uint32]*stream{}, awaitingWindow: map[*stream]struct{}{}, awaitingHeaderRoom: map[*stream]struct{}{}, lastActive: time.Now(),
		sendWindow: defaultWindow, initialWindow: defaultWindow, maxFrameSize: defaultMaxFrame,
	}
	c.corked, _ = below.(*corkConn)
	c.hpackEncoder = hpack.NewEncoder(&c.hpackBuf)
	return c
}

// add is called for a connection that has begun.
func (s *server) add(c *conn) {
	s.mu.Lock()
	s.conns[c] = struct{}{}
	leaving := s.shuttingDown
	s.mu.Unlock()
	if leaving {
		c.goAway()
	}
}

func (s *server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// leave is called when the server shuts down.
func (s *server) startShutdown() {
	s.mu.Lock()
	s.shuttingDown = true
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.goAway()
	}
}

// maxHeaderList is what a header list may have in bytes (RFC 9113, section 6.5.2): of each
// field 32 more than its characters.
func (s *server) maxHeaderList() uint32 {
	n := s.http.MaxHeaderBytes
	if n <= 0 {
		n = http.DefaultMaxHeaderBytes
	}
	const typicalFields, each = 10, 32
	return uint32(n + typicalFields*each)
}
