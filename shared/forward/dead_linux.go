package forward

import (
	"fmt"
	"syscall"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7).
const tcpUserTimeout = 0x12

// giveUp makes a connection fail when what was sent is not acknowledged within
// patience: the machine at its other end is gone, and nobody tells.
func giveUp(_, _ string, raw syscall.RawConn) error {
	var err error
	if cannot := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(patience.Milliseconds()))
	}); cannot != nil {
		return cannot
	}
	if err != nil {
		return fmt.Errorf("TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
