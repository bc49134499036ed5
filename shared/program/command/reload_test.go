package command

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestReload: a server is told of changed files, the first time for what may have
// changed before, and not of files that are as they were.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hangups := make(chan os.Signal, 8)
	signal.Notify(hangups, syscall.SIGHUP) // we are the server
	defer signal.Stop(hangups)
	write("tls.crt", "1")
	write("tls.key", "1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		f := reloadFlags{pidFile: at("pid"), files: []string{at("tls.crt"), at("tls.key")}, every: 10 * time.Millisecond}
		ended <- f.run(ctx)
	}()
	hangup := func() {
		t.Helper()
		select {
		case <-hangups:
		case <-time.After(10 * time.Second):
			t.Fatal("no SIGHUP")
		}
	}
	write("pid", strconv.Itoa(os.Getpid())+"\n") // after a while without
	hangup()
	for _, name := range []string{"tls.crt", "tls.key"} {
		write(name, "2")
		hangup()
	}
	// A file on its way is waited for.
	if err := os.Remove(at("tls.key")); err != nil {
		t.Fatal(err)
	}
	write("tls.key", "3")
	hangup()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Writing is not atomic here: a look in between may have been a change of its own.
	if len(hangups) > 3 {
		t.Errorf("%d more SIGHUPs than changes", len(hangups))
	}
}
