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
	return &recordConn{Conn: c}, nil
}

// recordConn is below TLS, which gives it one record with every write.
type recordConn struct {
	net.Conn

	mu   sync.Mutex
	held *[]byte // records, nil where they are not held; guarded by mu
}

// heldRecords are buffers for an output with what TLS adds to it.
var heldRecords = sync.Pool{New: func() any {
	b := make([]byte, 0, outputFull+2*record)
	return &b
}}

// Write implements [net.Conn].
func (c *recordConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

// hold keeps records until release.
func (c *recordConn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = heldRecords.Get().(*[]byte)
}

// release writes what was held.
func (c *recordConn) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.held
	c.held = nil
	_, err := c.Conn.Write(*b)
	if *b = (*b)[:0]; cap(*b) <= 2*outputFull {
		heldRecords.Put(b)
	}
	return err
}
