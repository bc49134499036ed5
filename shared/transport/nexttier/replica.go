package nexttier

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// shortConnections is the number of connections for short requests.
	shortConnections = 4
	// responseWindow bounds the unread bytes of the response to a short request. Go's default
	// is 4 MiB.
	responseWindow = 256 << 10
	// streamWindow bounds the unread bytes of a stream.
	streamWindow = 64 << 10
	// frameSize is the maximum frame size for short requests; large frames speed up lists.
	frameSize = 256 << 10
	// idleTimeout is the time after which unused connections are closed.
	idleTimeout = 90 * time.Second
	// Silent connections are pinged, to detect replicas that vanished without closing them.
	pingAfter, pingTimeout = 3 * time.Second, 2 * time.Second
)

// condition is the last known condition of a replica. Lower ones are preferred.
type condition int32

const (
	// ready is also the initial condition.
	ready condition = iota
	// unready means that the replica answers, but is not ready to serve.
	unready
	// down means that the replica did not answer the last attempt.
	down
	conditions
)

func (c condition) String() string { return [...]string{"ready", "unready", "down"}[c] }

// replica is one address of the next tier.
type replica struct {
	target  target
	ip      string
	address string // ip and the port of target

	pools [2]*pool // by kind: short and stream
	creds *credentials

	condition atomic.Int32
	// conditionKnown is set once the condition is not the initial one.
	conditionKnown atomic.Bool
	// distrusts is set while the replica refuses the front-proxy certificate.
	distrusts atomic.Bool
	inFlight  [kinds]atomic.Int64
	// nextProbe is owned by the goroutine of Run. missedProbes counts successive probes
	// without an answer; the goroutine that has set probing owns it.
	nextProbe    time.Time
	probing      atomic.Bool
	missedProbes int
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
		// A transport has a single window size and server name. The pool keeps its
		// connections.
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
			ctx:         p.ctx,
			dialTimeout: p.config.DialTimeout,
			minConns:    settings.spread,
			goroutines:  &p.goroutines,
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
