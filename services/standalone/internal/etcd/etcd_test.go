package etcd

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortTemp makes os.MkdirTemp("") use a directory of the test with a path that is short
// enough for sockets.
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "t") //nolint:usetesting // T.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	return dir
}

// TestRestartAfterCompactedRaftLog checks that a member has all its data after a restart,
// although it keeps few entries of raft's log.
func TestRestartAfterCompactedRaftLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	shortTemp(t)
	const writes = 3 * catchUpEntries
	for start := range 3 {
		m, err := Start(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Client.Get(t.Context(), "k", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || got.Count != int64(start*writes) {
			t.Errorf("start %d: %d keys, %v", start, got.Count, err)
		}
		for i := range writes {
			if _, err := m.Client.Put(t.Context(), fmt.Sprintf("k%d", start*writes+i), "v"); err != nil {
				t.Fatal(err)
			}
		}
		m.Close()
	}
}

func TestMemberKeepsItsDataAndClosesItsSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	temp := shortTemp(t)
	first, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Client.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(first.socket); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(first.socket) != temp {
		t.Errorf("socket directory %s: %v, %v", first.socket, info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(first.socket, "etcd.sock")); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("socket: %v", err)
	}
	// It listens on the socket only.
	outside, err := clientv3.New(clientv3.Config{Endpoints: []string{first.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := outside.Get(t.Context(), "k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Errorf("through the socket: %v, %v", got, err)
	}
	if err := outside.Close(); err != nil {
		t.Error(err)
	}
	if addrs := first.member.Addrs(); len(addrs) != 1 {
		t.Errorf("it listens on %v", addrs)
	}
	first.Close()
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	second, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	got, err = second.Client.Get(t.Context(), "k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Errorf("after a restart: %v, %v", got, err)
	}
	select {
	case err := <-second.Failed():
		t.Errorf("failed: %v", err)
	default:
	}
}

func TestStartWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	temp := shortTemp(t)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), file); err == nil || !strings.Contains(err.Error(), "etcd in "+file) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestCancelStart checks that Start returns when its context ends, as when a signal arrives
// during the replay of a large log.
func TestCancelStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	temp := shortTemp(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begin := time.Now()
	member, err := Start(ctx, dir)
	if err == nil { // it was ready before the check
		member.Close()
	}
	if took := time.Since(begin); took > startLimit/2 {
		t.Errorf("took %v", took)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
