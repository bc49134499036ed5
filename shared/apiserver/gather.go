package apiserver

import (
	"net"
	"runtime"
	"time"
)

// gathering lets goroutines that are ready run before a connection is written to.
//
// A change wakes hundreds of watches, of which a hundred may share a connection. Each
// gives HTTP/2 a small frame, and as soon as there is one it is encrypted and written,
// while the others' goroutines wait for a processor. Where they come first, their
// frames are in the buffer when it is written, and a record and a system call serve
// several of them. On an idle server nobody is ready, and nothing waits.
type gathering struct{ net.Listener }

const (
	// gatherBelow is the size in bytes of writes that wait: HTTP/2 buffers 4 KiB. More
	// is a part of a large answer, which is not helped by others.
	gatherBelow = 5 << 10
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
	return gatheringConn{conn}, nil
}

type gatheringConn struct{ net.Conn }

// Write implements net.Conn.
func (c gatheringConn) Write(p []byte) (int, error) {
	if len(p) < gatherBelow {
		runtime.Gosched()
	}
	return c.Conn.Write(p)
}
