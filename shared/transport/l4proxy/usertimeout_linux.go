package l4proxy

import (
	"fmt"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7).
const tcpUserTimeout = 0x12

// setUserTimeout makes a connection fail if sent data is not acknowledged within ackTimeout:
// the other machine has vanished without closing it.
func setUserTimeout(_, _ string, raw syscall.RawConn) error {
	var err error
	if cannot := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(ackTimeout.Milliseconds()))
	}); cannot != nil {
		return cannot
	}
	if err != nil {
		return fmt.Errorf("TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
