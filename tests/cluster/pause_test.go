package cluster

import (
	"os/exec"
	"syscall"
	"testing"
)

// Every thread is stopped when Pause returns: a test must not meet a program that is only
// about to hang.
func TestPauseHasStoppedEveryThread(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(exited)
	}()
	p := &Process{Name: "busy", cmd: cmd, exited: exited}
	defer p.Kill()
	if stopped(p.PID()) {
		t.Fatal("a busy program counts as stopped")
	}
	p.Pause()
	if !stopped(p.PID()) {
		t.Error("it still runs")
	}
}
