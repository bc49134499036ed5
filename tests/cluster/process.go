package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTimeout is how long a program may take to exit after SIGTERM.
const stopTimeout = 20 * time.Second

// Process is a program that can be started again with the same command line. Its methods
// must not be called concurrently, except for Log and Running.
type Process struct {
	// Name is unique in a cluster: "core-1".
	Name string
	// Path is the path of the binary, followed by its arguments.
	Path string
	Args []string
	// Env is added to the environment of the test.
	Env []string
	// Dir is the working directory.
	Dir string
	// LogFile receives standard output and standard error of all starts.
	LogFile string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// Start starts the program and, if ready is not nil, calls it until it succeeds, the
// program exits, or ctx is done.
func (p *Process) Start(ctx context.Context, ready func(context.Context) error) error {
	if p.Running() {
		return fmt.Errorf("start %s: it runs already", p.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.LogFile), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Dir = p.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup()
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	exited := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.exited, p.err = cmd, exited, nil
	p.mu.Unlock()
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(exited)
	}()
	if ready == nil {
		return nil
	}
	return p.await(ctx, exited, ready)
}

func (p *Process) await(ctx context.Context, exited <-chan struct{}, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		last := ready(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("start %s: it ended before it was ready: %v\n%s", p.Name, p.exitError(), p.Log(4<<10))
		case <-ctx.Done():
			return fmt.Errorf("start %s: not ready: %w (%w)\n%s", p.Name, last, context.Cause(ctx), p.Log(4<<10))
		case <-tick.C:
		}
	}
}

// Running reports whether the program is running.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// PID is the process ID, 0 if the program is not running.
func (p *Process) PID() int {
	if !p.Running() {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Stop sends SIGTERM and waits for the program to exit. It kills a program that does not
// exit in time, which is an error.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
		p.Kill()
		return fmt.Errorf("stop %s: it did not end within %v of SIGTERM", p.Name, stopTimeout)
	}
}

// Kill sends SIGKILL and waits for the program to exit.
func (p *Process) Kill() {
	if p.Running() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}

// Pause stops the program without closing a connection, like a machine that hangs, and
// returns when it has stopped. Resume continues it.
func (p *Process) Pause() {
	p.signal(syscall.SIGSTOP)
	// The signal is delivered to the threads one by one, and a busy program may answer some
	// requests before that.
	for limit := time.Now().Add(stopTimeout); p.Running() && !stopped(p.PID()) && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
}

// stopped reports whether every thread of a process is stopped. Without /proc it returns
// true.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // it has just exited
		}
		// The state follows the name, which is in parentheses and may contain parentheses.
		if _, state, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " "); ok && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// Resume undoes Pause.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// signal signals the process group of the program, which may have children.
func (p *Process) signal(sig syscall.Signal) {
	if pid := p.PID(); pid != 0 {
		_ = syscall.Kill(-pid, sig) // it may have exited meanwhile
	}
}

// Wait waits for the program to exit and returns nil or an [exec.ExitError].
func (p *Process) Wait(ctx context.Context) error {
	p.mu.Lock()
	exited := p.exited
	p.mu.Unlock()
	if exited == nil {
		return errors.New("wait for " + p.Name + ": it was never started")
	}
	select {
	case <-exited:
		return p.exitError()
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.Name, context.Cause(ctx))
	}
}

func (p *Process) exitError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Log returns at most the last limit bytes of the log.
func (p *Process) Log(limit int64) string {
	f, err := os.Open(p.LogFile)
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, end-limit), io.SeekStart)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	if int64(len(data)) == limit {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			data = data[i+1:]
		}
	}
	return string(data)
}
