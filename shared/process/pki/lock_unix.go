//go:build unix

package pki

import (
	"os"
	"path/filepath"
	"syscall"
)

// lockDir takes the directory's lock, waiting for a process that has it. The
// kernel gives it back when the holder dies, so a crash blocks nobody.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			// Closing the file gives the lock back.
			return func() { _ = f.Close() }, nil
		}
		if err != syscall.EINTR {
			_ = f.Close()
			return nil, err
		}
	}
}
