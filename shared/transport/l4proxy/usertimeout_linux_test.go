package l4proxy

import (
	"net"
	"syscall"
	"testing"
)

// TestUnresponsiveBackendsAreDetected inspects the option of the socket, because no machine can
// vanish from the loopback interface. tests/deploy removes a real one.
func TestUnresponsiveBackendsAreDetected(t *testing.T) {
	f := &Forwarder{Backends: []string{echo(t, "a")}}
	conn, err := f.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		got, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout)
		if err != nil || int64(got) != ackTimeout.Milliseconds() {
			t.Errorf("a connection to a backend may be unanswered for %d ms, %v; want %v", got, err, ackTimeout)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
