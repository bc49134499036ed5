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

// pool holds the HTTP/2 connections of one kind to one replica.
type pool struct {
	// connect makes a connection; it is given the time that making it may take.
	connect func(ctx context.Context) (*http.ClientConn, error)
	// background is where connections are made: not in the name of the request
	// that asked first, for others wait for it too. It ends with the proxy.
	ctx context.Context
	dialTimeout    time.Duration
	// spread is how many connections are opened before a request joins another
	// one on its connection. Beyond it, one is opened only when all are full.
	minConns int
	// running counts the goroutines that connect.
	goroutines *sync.WaitGroup

	mu      sync.Mutex
	conns   []*conn
	dialing int
	closed  bool
	// outcome is closed and replaced whenever a connection attempt ends;
	// failures counts those that failed, lastErr is the last one's error.
	dialDone  chan struct{}
	dialFailures int
	lastErr  error
}

// resetLimit is how many streams of a connection may be reset before it gets no more
// requests. The handlers of such streams may go on for a while; a server of net/http, or of
// ours, ends a connection that has four times as many waiting as it may have streams, with
// everything on it (CVE-2023-44487).
const maxResetStreams = 32

// maxHeads is how many bytes of header fields a connection may carry at which it gets no more
// requests: a server of ours refuses those for which it would hold more than eight times
// [maxHeaders], and whoever sends long ones must not have others refused.
const maxConnHeaderBytes = 4 * maxHeaders

// conn is a connection of a pool.
type conn struct {
	*http.ClientConn
	pool   *pool
	resetStreams atomic.Int32
	// heads are the bytes of header fields that the server may hold, lost those of streams
	// that were reset.
	headerBytes, resetHeaderBytes atomic.Int64
}

// reset notes that a stream has ended before its time, whose request had so many bytes of
// header fields.
func (c *conn) streamReset(head int64) {
	if c.resetStreams.Add(1) == maxResetStreams || c.resetHeaderBytes.Add(head) >= maxConnHeaderBytes/2 {
		c.pool.retire(c)
	}
}

// answered notes that a request has been answered, or not been sent.
func (c *conn) streamDone(head int64) { c.headerBytes.Add(-head) }

// left is how many requests the connection takes without letting one wait for a handler.
func (c *conn) available() int {
	if c.headerBytes.Load() >= maxConnHeaderBytes {
		return 0
	}
	return c.Available() - int(c.resetStreams.Load())
}

// full reports whether a connection with nothing left has as many streams as a server is
// taken to allow, or as long ones. One that has fewer is about to close.
func (c *conn) full() bool {
	return c.InFlight()+int(c.resetStreams.Load()) >= assumedMaxStreams || c.headerBytes.Load() >= maxConnHeaderBytes
}

// fullConnection is the number of streams a server is taken to allow on a connection.
const assumedMaxStreams = 100

// acquire returns a connection with a stream reserved on it for a request with so many bytes
// of header fields: the caller must call RoundTrip or Release on it, and then answered or
// reset. It returns an error when an attempt to
// connect has failed that the caller waited for, when patience is over, or when
// ctx has ended.
func (p *pool) acquire(ctx context.Context, head int64, patience time.Duration) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var impatient <-chan time.Time
	for {
		if p.closed {
			return nil, errPoolClosed
		}
		conn, open := p.reserveLocked()
		alone := conn != nil && conn.InFlight() == 1 // our own reservation
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

// reserveLocked takes a stream on the least used connection that has one left,
// and counts the connections that still take requests. On the way it forgets
// the ones that have ended; those that only finish what they carry close
// themselves when they are done.
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
	// It may have ended, or filled up from outside, since the look.
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

// renew lets the present connections finish what they carry and makes new ones
// for everything else.
func (p *pool) replaceConns() {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		closeWhenIdle(c.ClientConn)
	}
}

// retire does as renew for one connection.
func (p *pool) retire(c *conn) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(other *conn) bool { return other == c })
	p.mu.Unlock()
	closeWhenIdle(c.ClientConn)
}

// close does as renew and refuses requests from now on.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.replaceConns()
}

// size is the number of connections kept.
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
