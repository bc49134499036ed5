package readme

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// endLimit bounds the shutdown of a server and of its processes.
const endLimit = 2 * time.Minute

func TestRun(t *testing.T) {
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	m := start(t, "run", "SECURE_PORT="+strconv.Itoa(port), "DATA_DIR="+filepath.Join(t.TempDir(), "data"))
	m.kubectl(t)
	m.quiet(t)
	m.end(t)
	if conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
		_ = conn.Close()
		t.Error("the server has not ended")
	}
}

// TestRunSaysWhatIsWrong checks that the output of a failed start has the reason, and
// nothing of the log.
func TestRunSaysWhatIsWrong(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	m := launch(t, "run", "SECURE_PORT="+port, "DATA_DIR="+data)
	<-m.ended
	if m.err == nil {
		t.Error("make has not failed")
	}
	m.quiet(t)
	if want := regexp.MustCompile(`(?m)^error: .*` + port); !want.MatchString(m.output.String()) {
		t.Errorf("want an error that names port %s:\n%s", port, m.output.String())
	}
}

func TestRunTiers(t *testing.T) {
	m := start(t, "run-tiers", "REPLICAS=2")
	m.kubectl(t)
	m.end(t)
}

// target is a running make target with a server.
type target struct {
	command    *exec.Cmd
	kubeconfig string
	announced  chan string   // the kubeconfig, when the server is ready
	tmp        string        // directory of the servers' temporary files
	ended      chan struct{} // closed when make has exited; err is set before
	err        error
	output     output
}

// start runs a target of the Makefile until it prints the path of its kubeconfig. A first
// build takes many minutes, so there is no time limit except for the test's.
func start(t *testing.T, args ...string) *target {
	t.Helper()
	m := launch(t, args...)
	select {
	case m.kubeconfig = <-m.announced:
	case <-m.ended:
		t.Fatalf("make ended before the server was ready: %v", m.err)
	}
	return m
}

// launch runs a target of the Makefile.
func launch(t *testing.T, args ...string) *target {
	t.Helper()
	// The name is short, because it is part of the path of a socket.
	tmp, err := os.MkdirTemp("", "t") //nolint:usetesting // T.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	m := &target{tmp: tmp, announced: make(chan string, 1), ended: make(chan struct{})}
	m.command = exec.Command("make", args...)
	m.command.Dir = root(t)
	// As from a terminal, even if make runs the test.
	m.command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "MAKE") || strings.HasPrefix(variable, "MFLAGS=")
	})
	m.command.Env = append(m.command.Env, "TMPDIR="+tmp)
	m.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A process that is left behind must not block Wait.
	m.command.WaitDelay = time.Second
	read, write := io.Pipe()
	go func() {
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			if path, ok := strings.CutPrefix(lines.Text(), "export KUBECONFIG="); ok {
				m.announced <- path
				break
			}
		}
		_, _ = io.Copy(io.Discard, read)
	}()
	m.command.Stdout, m.command.Stderr = io.MultiWriter(&m.output, write), &m.output
	if err := m.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		m.err = m.command.Wait()
		_ = write.Close()
		close(m.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-m.command.Process.Pid, syscall.SIGKILL) // whatever is left
		if t.Failed() {
			t.Logf("make %s:\n%s", strings.Join(args, " "), m.output.String())
		}
	})
	return m
}

var logLine = regexp.MustCompile(`(?m)^[IWEF]\d{4} \d\d:\d\d:\d\d`)

// quiet fails the test if make has printed the server's log.
func (m *target) quiet(t *testing.T) {
	t.Helper()
	if logged := logLine.FindAllString(m.output.String(), -1); len(logged) > 0 {
		t.Errorf("%d lines of the log bury what the user needs", len(logged))
	}
}

// end interrupts the process group, like Ctrl-C in a terminal, and waits until no process
// is left.
func (m *target) end(t *testing.T) {
	t.Helper()
	group := -m.command.Process.Pid
	if err := syscall.Kill(group, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.ended:
	case <-time.After(endLimit):
		t.Fatalf("make has not ended after %v", endLimit)
	}
	// make may exit before the server that it has started.
	deadline := time.Now().Add(endLimit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !errors.Is(syscall.Kill(group, 0), syscall.ESRCH) {
		if <-tick.C; time.Now().After(deadline) {
			t.Fatalf("processes are left after %v", endLimit)
		}
	}
	if strings.Contains(m.output.String(), "***") {
		t.Error("make reports an error")
	}
	left, err := filepath.Glob(filepath.Join(m.tmp, "triune*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// kubectl runs the commands of README.md.
func (m *target) kubectl(t *testing.T) {
	t.Helper()
	for _, command := range commands(t) {
		shell := exec.CommandContext(t.Context(), "sh", "-c", command)
		shell.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig, "PATH="+filepath.Join(root(t), ".tools")+":"+os.Getenv("PATH"))
		out, err := shell.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		if strings.HasPrefix(command, "kubectl get deployments") && !bytes.Contains(out, []byte("web")) {
			t.Errorf("%s: %s", command, out)
		}
	}
}

var kubectlLine = regexp.MustCompile(`(?m)^kubectl .*$`)

// commands returns the commands of the first section that uses kubectl.
func commands(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(readme), "## Run it")
	for block := range strings.SplitSeq(text, "```") {
		if found := kubectlLine.FindAllString(block, -1); len(found) > 0 {
			return found
		}
	}
	t.Fatal("README.md has no commands with kubectl")
	return nil
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// output collects the output of make.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
