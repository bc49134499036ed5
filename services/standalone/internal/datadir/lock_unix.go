//go:build unix

package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockFile is never removed: otherwise two processes might lock two files of that name.
const lockFile = "triune.lock"

// Lock makes dir if necessary and locks it. If another process holds the lock, it fails at
// once with an error that names the process. The kernel releases the lock when the process
// ends, however it ends.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(file); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() { _ = file.Close() }, nil // closing releases the lock
}

func lock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return inUse(file)
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	// The error of another process names this one.
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

func inUse(file *os.File) error {
	holder, err := io.ReadAll(io.LimitReader(file, 32))
	if id := strings.TrimSpace(string(holder)); err == nil && id != "" {
		return fmt.Errorf("in use by another triune, process %s", id)
	}
	return errors.New("in use by another triune")
}
