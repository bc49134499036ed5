package forward

import (
	"net"
	"syscall"
	"testing"
)

// TestDeadBackendsAreNotWaitedFor looks at the connection itself: a machine that
// vanishes cannot be played on the loopback interface. tests/deploy takes one away.
func TestDeadBackendsAreNotWaitedFor(t *testing.T) {
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
		if err != nil || int64(got) != patience.Milliseconds() {
			t.Errorf("a connection to a backend may be unanswered for %d ms, %v; want %v", got, err, patience)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
