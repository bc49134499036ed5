package nexttier

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errPoolClosed   = errors.New("the replica is no longer used")
	errNoConnection = errors.New("no connection within the time a request waits for one")
)

// pool holds the HTTP/2 connections to a replica for one kind of requests.
type pool struct {
	// connect makes a connection; its context is bounded by dialTimeout.
	connect func(ctx context.Context) (*http.ClientConn, error)
	// ctx is the parent of the contexts of connect. It is the proxy's and not a request's,
	// because several requests wait for one connection.
	ctx         context.Context
	dialTimeout time.Duration
	// minConns is the number of connections to open before requests share one. Beyond it, a
	// connection is opened only when all are full.
	minConns int
	// goroutines counts the running dials.
	goroutines *sync.WaitGroup

	mu      sync.Mutex
	conns   []*conn
	dialing int
	closed  bool
	// dialDone is closed and replaced whenever a dial ends. dialFailures counts failed dials,
	// and lastErr is the last error.
	dialDone     chan struct{}
	dialFailures int
	lastErr      error
}

// maxResetStreams is the number of reset streams after which a connection gets no more requests.
// Their handlers may still be running: the servers of net/http and of package h2 close a
// connection on which four times its maximum number of streams wait for a handler
// (CVE-2023-44487).
const maxResetStreams = 32

// maxConnHeaderBytes is the size of the headers of all requests in flight above which a
// connection gets no more requests. Package h2 refuses streams beyond eight times [maxHeaders];
// a client that sends long headers must not cause this for others.
const maxConnHeaderBytes = 4 * maxHeaders

// conn is a connection of a pool.
type conn struct {
	*http.ClientConn
	pool         *pool
	resetStreams atomic.Int32
	// headerBytes is the size of the request headers that the server may hold in memory, and
	// resetHeaderBytes the part of them on reset streams.
	headerBytes, resetHeaderBytes atomic.Int64
}

// streamReset records that a stream with this many bytes of request headers was reset.
func (c *conn) streamReset(head int64) {
	if c.resetStreams.Add(1) == maxResetStreams || c.resetHeaderBytes.Add(head) >= maxConnHeaderBytes/2 {
		c.pool.retire(c)
	}
}

// streamDone records that a request was answered completely or not sent.
func (c *conn) streamDone(head int64) { c.headerBytes.Add(-head) }

// available returns how many more requests the connection takes without queueing them.
func (c *conn) available() int {
	if c.headerBytes.Load() >= maxConnHeaderBytes {
		return 0
	}
	return c.Available() - int(c.resetStreams.Load())
}

// full reports whether a connection without available streams is fully used. If not, it is about
// to close.
func (c *conn) full() bool {
	return c.InFlight()+int(c.resetStreams.Load()) >= assumedMaxStreams || c.headerBytes.Load() >= maxConnHeaderBytes
}

// assumedMaxStreams is the assumed maximum number of concurrent streams of a server.
const assumedMaxStreams = 100

// acquire returns a connection with a reserved stream for a request with headers of this size.
// The caller must call RoundTrip or Release, and then streamDone or streamReset. acquire returns
// an error if a dial that it waits for fails, after the timeout, or when ctx ends.
func (p *pool) acquire(ctx context.Context, head int64, patience time.Duration) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var impatient <-chan time.Time
	for {
		if p.closed {
			return nil, errPoolClosed
		}
		conn, open := p.reserveLocked()
		alone := conn != nil && conn.InFlight() == 1 // only this reservation
		if conn == nil && p.dialing == 0 || conn != nil && !alone && open+p.dialing < p.minConns {
			p.dialing++
			p.goroutines.Go(p.dial)
		}
		if conn != nil {
			conn.headerBytes.Add(head)
			return conn, nil
		}
		if impatient == nil {
			impatient = time.After(patience)
		}
		outcome, failures := p.dialDone, p.dialFailures
		p.mu.Unlock()
		var ended error
		select {
		case <-outcome:
		case <-impatient:
			ended = errNoConnection
		case <-ctx.Done():
			ended = context.Cause(ctx)
		}
		p.mu.Lock()
		if ended != nil {
			return nil, ended
		}
		if p.dialFailures != failures {
			return nil, p.lastErr
		}
	}
}

// reserveLocked reserves a stream on the least used connection, and counts the connections that
// accept requests. It removes closed connections; draining ones close themselves.
func (p *pool) reserveLocked() (best *conn, open int) {
	p.conns = slices.DeleteFunc(p.conns, func(c *conn) bool { return c.Err() != nil })
	least := -1
	for _, c := range p.conns {
		if c.available() <= 0 {
			if c.full() {
				open++
			}
			continue
		}
		open++
		if n := c.InFlight(); least < 0 || n < least {
			best, least = c, n
		}
	}
	// It may have closed or filled up in the meantime.
	if best != nil && best.Reserve() != nil {
		return nil, open
	}
	return best, open
}

func (p *pool) dial() {
	ctx, cancel := context.WithTimeout(p.ctx, p.dialTimeout)
	defer cancel()
	made, err := p.connect(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing--
	switch {
	case err != nil:
		p.dialFailures++
		p.lastErr = err
	case p.closed:
		_ = made.Close()
	default:
		p.conns = append(p.conns, &conn{ClientConn: made, pool: p})
	}
	close(p.dialDone)
	p.dialDone = make(chan struct{})
}

// replaceConns lets the current connections drain; further requests get new ones.
func (p *pool) replaceConns() {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		closeWhenIdle(c.ClientConn)
	}
}

// retire lets one connection drain.
func (p *pool) retire(c *conn) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(other *conn) bool { return other == c })
	p.mu.Unlock()
	closeWhenIdle(c.ClientConn)
}

// close lets the connections drain and refuses further requests.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.replaceConns()
}

// size returns the number of connections.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func closeWhenIdle(c *http.ClientConn) {
	c.SetStateHook(func(c *http.ClientConn) {
		if c.InFlight() == 0 {
			_ = c.Close()
		}
	})
	if c.InFlight() == 0 {
		_ = c.Close()
	}
}
