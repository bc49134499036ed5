//go:build unix

package pki

import (
	"os"
	"path/filepath"
	"syscall"
)

// lockDir locks the directory and waits for a process that holds the lock. The kernel
// releases the lock when that process ends, however it ends.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			// Closing the file releases the lock.
			return func() { _ = f.Close() }, nil
		}
		if err != syscall.EINTR {
			_ = f.Close()
			return nil, err
		}
	}
}
