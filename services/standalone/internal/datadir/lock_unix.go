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

// lockFile stays behind when the process has ended: to remove it would let two
// processes lock two files of that name.
const lockFile = "triune.lock"

// Lock makes dir, if need be, and takes it for this process. It fails at once when
// another process has it, with that one's id. The kernel gives the lock back when
// the holder dies, so a crash blocks nobody.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := take(file); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() { _ = file.Close() }, nil // which gives the lock back
}

func take(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return inUse(file)
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	// Who it is, for the message of the next one.
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
