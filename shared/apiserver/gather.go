package apiserver

import (
	"net"
	"runtime"
	"sync"
	"time"
)

// gathering makes fewer system calls of what is written to the connections of a
// listener, on which TLS is spoken: it sees one record with every write.
//
// Large answers come in records of 16 KiB, each of which would be sent, received and
// acknowledged by itself. They are held until they are gatherMax, or a short record
// says that for the moment nothing follows.
//
// Small ones are those of watches. A change wakes hundreds, of which a hundred may share
// a connection. Each gives HTTP/2 a small frame, and as soon as there is one it is
// encrypted and written, while the others' goroutines wait for a processor. Where
// goroutines that are ready run before a short record is written, their frames are in
// the buffer when it is, and a record and a system call serve several of them. On an
// idle server nobody is ready, and nothing waits.
type gathering struct{ net.Listener }

const (
	// buffered is what HTTP/2 and HTTP/1.1 keep in bytes before they write: what is
	// shorter comes from a flush.
	buffered = 4 << 10
	// gatherMax is the size in bytes at which records are written.
	gatherMax = 64 << 10
	// holdAtMost is how long a record is held if nothing follows, because the client's
	// window is full or the next part of an answer is not made yet. Where many are
	// answered at once it takes a while until it is this answer's turn.
	holdAtMost = 5 * time.Millisecond
	// A client with a window of less than smallWindow bytes would be kept waiting again
	// and again: so much is written as it comes when one seems to be.
	smallWindow, writeThrough = 256 << 10, 1 << 20
	// fullRecord is the most that a record carries. HTTP/2's usual frame has as much and
	// a header, which makes a record of less than tail bytes follow.
	fullRecord, tail = 16 << 10, 64
	// applicationData is the type of records that are not of a handshake.
	applicationData = 23
	// keepAlive is as in k8s.io/apiserver, which sets it only on connections that it
	// knows.
	keepAlive = 3 * time.Minute
)

// Accept implements net.Listener.
func (l gathering) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAlive(true) // a connection without is one still
		_ = tcp.SetKeepAlivePeriod(keepAlive)
	}
	return &gatheringConn{Conn: conn}, nil
}

// gatheringConn must be written whole records. An error of what was held is that of the
// next write.
type gatheringConn struct {
	net.Conn

	mu   sync.Mutex
	held *[]byte     // of gathered, nil where nothing is held; guarded by mu
	late *time.Timer // writes what is held; guarded by mu
	// sinceLate counts the bytes that were held since it did; guarded by mu.
	sinceLate int
	through   int   // bytes to be written as they come; guarded by mu
	full      bool  // the last record was; guarded by mu
	err       error // of a late write; guarded by mu
}

// gathered are buffers for records. A pointer is what a pool takes without allocating.
var gathered = sync.Pool{New: func() any {
	b := make([]byte, 0, gatherMax+2*fullRecord)
	return &b
}}

// Write implements net.Conn.
func (c *gatheringConn) Write(p []byte) (int, error) {
	if len(p) < buffered {
		runtime.Gosched()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	hold := c.holdsLocked(p)
	if c.held == nil {
		if !hold {
			return c.Conn.Write(p)
		}
		c.held = gathered.Get().(*[]byte)
		c.startLocked()
	}
	*c.held = append(*c.held, p...)
	c.sinceLate += len(p)
	if hold && len(*c.held) < gatherMax {
		return len(p), nil
	}
	c.late.Stop()
	if err := c.writeLocked(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// holdsLocked tells whether more may be expected after a record.
func (c *gatheringConn) holdsLocked(p []byte) bool {
	ends := len(p) < buffered && (!c.full || len(p) >= tail)
	c.full = len(p) >= fullRecord
	if c.through > 0 {
		c.through -= len(p)
		return false
	}
	return !ends && p[0] == applicationData
}

// startLocked sees to it that what is held is not held for long.
func (c *gatheringConn) startLocked() {
	if c.late == nil {
		c.late = time.AfterFunc(holdAtMost, c.writeLate)
	} else {
		c.late.Reset(holdAtMost)
	}
}

func (c *gatheringConn) writeLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return
	}
	if c.sinceLate < smallWindow {
		c.through = writeThrough
	}
	c.sinceLate = 0
	c.err = c.writeLocked()
}

// writeLocked writes what is held.
func (c *gatheringConn) writeLocked() error {
	b := c.held
	c.held = nil
	_, err := c.Conn.Write(*b)
	*b = (*b)[:0]
	gathered.Put(b)
	return err
}
