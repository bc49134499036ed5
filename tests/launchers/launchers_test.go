package launchers

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"triune.dev/tests/tools"
)

var target = flag.String("target", "triune", "program to start as kube-apiserver: triune or kube-apiserver")

// programs returns a directory with kube-apiserver, which is the program under test, and
// others. Whatever runs from there at the end of the test is killed: tools start their
// programs in process groups of their own, and some leave them behind.
func programs(t *testing.T, others ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range append(others, "kube-apiserver") {
		path, err := tools.Path(t.Context(), name)
		if name == "kube-apiserver" && *target == "triune" {
			path, err = tools.Binary("triune")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, id := range running(t, dir) {
			_ = syscall.Kill(id, syscall.SIGKILL)
		}
	})
	return dir
}

// running returns the processes that were started as a program of dir.
func running(t *testing.T, dir string) (ids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(line, []byte(dir+"/")) {
			continue // it may have ended
		}
		if id, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// until repeats what may fail for a while.
func until(t *testing.T, what string, attempt func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !attempt(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
