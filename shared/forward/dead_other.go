//go:build !linux

package forward

import "syscall"

// giveUp leaves it to the system when to give up on a machine that is gone.
func giveUp(_, _ string, _ syscall.RawConn) error { return nil }
