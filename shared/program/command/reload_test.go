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

// TestReload checks that a server gets one SIGHUP at first, since its files may have
// changed before, and then one after each change.
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
	signal.Notify(hangups, syscall.SIGHUP) // this process stands for the server
	defer signal.Stop(hangups)
	write("tls.crt", "1")
	write("tls.key", "1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		f := reloadFlags{pidFile: at("pid"), files: []string{at("tls.crt"), at("tls.key")}, interval: 10 * time.Millisecond}
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
	write("pid", strconv.Itoa(os.Getpid())+"\n") // after some attempts without the file
	hangup()
	for _, name := range []string{"tls.crt", "tls.key"} {
		write(name, "2")
		hangup()
	}
	// While a file is missing, no signal is sent.
	if err := os.Remove(at("tls.key")); err != nil {
		t.Fatal(err)
	}
	write("tls.key", "3")
	hangup()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Writes are not atomic here: each may count as two changes.
	if len(hangups) > 3 {
		t.Errorf("%d more SIGHUPs than changes", len(hangups))
	}
}
