package h2

import (
	"net"
	"sync"
)

// Listener makes connections on which TLS is spoken write the records of a large answer
// together, and not each with a system call.
type Listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &corkConn{Conn: c}, nil
}

// recordConn is below TLS, which gives it one record with every write.
type corkConn struct {
	net.Conn

	mu      sync.Mutex
	pending *[]byte // records, nil where they are not held; guarded by mu
}

// heldRecords are buffers for an output with what TLS adds to it.
var corkBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, outputLimit+2*recordSize)
	return &b
}}

// Write implements [net.Conn].
func (c *corkConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		return c.Conn.Write(p)
	}
	*c.pending = append(*c.pending, p...)
	return len(p), nil
}

// hold keeps records until release.
func (c *corkConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = corkBuffers.Get().(*[]byte)
}

// release writes what was held.
func (c *corkConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.pending
	c.pending = nil
	_, err := c.Conn.Write(*b)
	if *b = (*b)[:0]; cap(*b) <= 2*outputLimit {
		corkBuffers.Put(b)
	}
	return err
}
