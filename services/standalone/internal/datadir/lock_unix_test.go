//go:build unix

package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLockIsOfOneAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v: %v", info.Mode(), err)
	}
	// A second open file is as good as a second process to flock(2).
	if _, err := Lock(dir); err == nil || err.Error() != fmt.Sprintf("in use by another triune, process %d", os.Getpid()) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	again, err := Lock(dir)
	if err != nil {
		t.Fatalf("after it was given back: %v", err)
	}
	again()
}

func TestLockOfWhatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
