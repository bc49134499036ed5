package cluster

import (
	"os/exec"
	"syscall"
	"testing"
)

// Pause has taken effect when it returns: what is tested next is a program that
// hangs, not one that is about to.
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
