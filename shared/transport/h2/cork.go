package h2

import (
	"net"
	"sync"
)

// Listener coalesces the TLS records of a large write into a single system call. It listens below
// TLS.
type Listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &corkConn{Conn: c}, nil
}

// corkConn is a connection below TLS, which writes each record separately.
type corkConn struct {
	net.Conn

	mu      sync.Mutex
	pending *[]byte // buffered records, nil while not corked; guarded by mu
}

// corkBuffers holds buffers for a full output and its TLS overhead.
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

// cork buffers writes until uncork.
func (c *corkConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = corkBuffers.Get().(*[]byte)
}

// uncork writes the buffered records.
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
