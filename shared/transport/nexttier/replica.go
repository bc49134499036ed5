package nexttier

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// shortConnections is how many connections short requests are spread over.
	shortConnections = 4
	// answerWindow bounds the bytes of the answer to a short request that its client has not
	// read. Go's default would be 4 MiB.
	responseWindow = 256 << 10
	// streamWindow is what a stream may hold that its client has not read, in
	// bytes.
	streamWindow = 64 << 10
	// frameSize is the largest frame accepted for short requests: large lists
	// come in fewer pieces.
	frameSize = 256 << 10
	// idleTimeout closes connections that nobody uses.
	idleTimeout = 90 * time.Second
	// A connection on which nothing arrives is pinged, so that a replica that
	// vanished without a word is noticed.
	pingAfter, pingTimeout = 3 * time.Second, 2 * time.Second
)

// condition is what is known of a replica; a smaller one is preferred.
type condition int32

const (
	// ready is also what a replica is until something else is known of it.
	ready condition = iota
	// unready answers, but says that it should not get requests.
	unready
	// down did not answer the last time it was tried.
	down
	conditions
)

func (c condition) String() string { return [...]string{"ready", "unready", "down"}[c] }

// replica is one address at which the next tier is.
type replica struct {
	target  target
	ip      string
	address string // ip with the target's port

	pools [2]*pool // for short requests and streams
	creds *credentials

	condition atomic.Int32
	// known is set once the condition is more than a guess.
	conditionKnown atomic.Bool
	// distrusts is set while the replica refuses the front-proxy certificate.
	distrusts atomic.Bool
	inFlight  [kinds]atomic.Int64
	// nextProbe belongs to the goroutine of Run. missed, the number of probes in
	// a row that got no answer, belongs to the one probe that has set probing.
	nextProbe time.Time
	probing   atomic.Bool
	missedProbes    int
}

func (p *Proxy) newReplica(t target, ip string) *replica {
	r := &replica{target: t, ip: ip, address: net.JoinHostPort(ip, t.port), creds: p.credentials}
	for i, settings := range []struct {
		spread int
		http2  http.HTTP2Config
	}{
		short:  {shortConnections, http.HTTP2Config{MaxReadFrameSize: frameSize, MaxReceiveBufferPerStream: responseWindow}},
		stream: {1, http.HTTP2Config{MaxReceiveBufferPerStream: streamWindow}},
	} {
		settings.http2.SendPingTimeout, settings.http2.PingTimeout = pingAfter, pingTimeout
		// A transport of its own for each, because it is made for one window size
		// and one server name. It keeps no connections: pool does.
		transport := &http.Transport{
			DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				return r.creds.dial(ctx, address, t.serverName, "h2")
			},
			DisableCompression: true,
			IdleConnTimeout:    idleTimeout,
			HTTP2:              &settings.http2,
			Protocols:          new(http.Protocols),
		}
		transport.Protocols.SetHTTP2(true)
		r.pools[i] = &pool{
			connect: func(ctx context.Context) (*http.ClientConn, error) {
				conn, err := transport.NewClientConn(ctx, "https", r.address)
				if err == nil {
					p.markReachable(r)
				}
				return conn, err
			},
			dialDone:    make(chan struct{}),
			ctx: p.ctx,
			dialTimeout:    p.config.DialTimeout,
			minConns:     settings.spread,
			goroutines:    &p.goroutines,
		}
	}
	return r
}

func (r *replica) replaceConns() {
	for _, pool := range r.pools {
		pool.replaceConns()
	}
}

func (r *replica) close() {
	for _, pool := range r.pools {
		pool.close()
	}
}
