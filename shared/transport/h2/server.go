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

// Options limit the resources of a client.
type Options struct {
	// MaxConcurrentStreams is the number of concurrent streams of a connection.
	MaxConcurrentStreams int
	// MaxUploadPerStream is the receive window of a stream and the maximum frame size, in
	// bytes: from 16 KiB to below 16 MiB.
	MaxUploadPerStream int
	// IdleTimeout closes connections without requests; it must be positive.
	IdleTimeout time.Duration
}

// connWindow returns the receive window of a connection, in bytes.
func (o Options) connWindow() int64 {
	return min(max(int64(o.MaxUploadPerStream)*int64(o.MaxConcurrentStreams), defaultWindow), maxWindow)
}

// Configure makes hs serve HTTP/2 with this package to clients that negotiate it by ALPN. It
// must be called before the server starts. hs.Shutdown then waits for HTTP/2 requests, too. Of
// the fields of hs, Handler, TLSConfig and MaxHeaderBytes apply to HTTP/2; only handlers set
// read and write deadlines.
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

// server tracks the HTTP/2 connections of an [http.Server].
type server struct {
	Options
	http    *http.Server
	workers workers

	mu           sync.Mutex
	conns        map[*conn]struct{} // guarded by mu
	shuttingDown bool               // guarded by mu
}

// serve serves a connection until it ends. rawConn is the connection below TLS, and state the
// TLS state; state is nil without TLS.
func (s *server) serve(nc, rawConn net.Conn, state *tls.ConnectionState, handler http.Handler) {
	s.newConn(nc, rawConn, state, handler).serve()
}

func (s *server) newConn(nc, rawConn net.Conn, state *tls.ConnectionState, handler http.Handler) *conn {
	ctx := context.WithValue(context.Background(), http.ServerContextKey, s.http)
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, nc.LocalAddr())
	c := &conn{
		server: s, net: nc, rawConn: rawConn, tls: state, remote: nc.RemoteAddr().String(), handler: handler, ctx: ctx,
		streams: map[uint32]*stream{}, awaitingWindow: map[*stream]struct{}{}, awaitingHeaderRoom: map[*stream]struct{}{}, lastActive: time.Now(),
		sendWindow: defaultWindow, initialWindow: defaultWindow, maxFrameSize: defaultMaxFrame,
	}
	c.corked, _ = rawConn.(*corkConn)
	c.hpackEncoder = hpack.NewEncoder(&c.hpackBuf)
	return c
}

// add registers a connection after its handshake.
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

// startShutdown asks all connections to end; [http.Server] calls it on Shutdown.
func (s *server) startShutdown() {
	s.mu.Lock()
	s.shuttingDown = true
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.goAway()
	}
}

// maxHeaderList returns the advertised SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113, section 6.5.2),
// which counts 32 bytes per field in addition to its name and value.
func (s *server) maxHeaderList() uint32 {
	n := s.http.MaxHeaderBytes
	if n <= 0 {
		n = http.DefaultMaxHeaderBytes
	}
	const typicalFields, each = 10, 32
	return uint32(n + typicalFields*each)
}
