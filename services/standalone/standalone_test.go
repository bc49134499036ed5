package standalone

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/program/command"
)

// asProgram is the environment variable that makes the test binary run triune.
const asProgram = "TRIUNE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(runAsProgram())
	}
	os.Exit(m.Run())
}

// leaked is the exit status of a triune with leaked goroutines.
const leaked = 3

// runAsProgram runs triune and checks for leaked goroutines at the end.
func runAsProgram() int {
	code := command.Main(Command(os.Args[0]))
	if code == 0 {
		if err := goleak.Find(forever...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return leaked
		}
	}
	return code
}

// forever are goroutines of libraries that run once in a process and never end.
var forever = []goleak.Option{
	goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),             // the health check named log
	goleak.IgnoreTopFunction("triune.dev/shared/program/command.signalContext.func1"), // waits for a second signal
}

// process is a running triune.
type process struct {
	t       *testing.T
	command *exec.Cmd
	dir     string // --data-dir
	tmp     string // where it has its socket
	port    int
	done    chan struct{} // closed when it has ended

	mu     sync.Mutex
	stderr bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// launch starts triune with its data in dir.
func launch(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return launchIn(t, "", dir, append([]string{"--data-dir=" + dir}, args...)...)
}

// launchIn starts triune in a working directory.
func launchIn(t *testing.T, working, dir string, args ...string) *process {
	t.Helper()
	return launchAs(t, "triune", working, dir, args...)
}

// launchAs starts triune under a name.
func launchAs(t *testing.T, name, working, dir string, args ...string) *process {
	t.Helper()
	tmp, err := os.MkdirTemp("", "t") //nolint:usetesting // T.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	p := &process{t: t, dir: dir, tmp: tmp, port: freePort(t), done: make(chan struct{})}
	p.command = exec.Command(os.Args[0], append([]string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(p.port),
	}, args...)...)
	p.command.Args[0] = name
	p.command.Dir = working
	p.command.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+tmp)
	p.command.Stderr = p
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.command.Wait()
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.done
	})
	return p
}

// wait waits for the process to end and returns its exit status.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("still running after %v:\n%s", within, p.log())
	}
	return p.command.ProcessState.ExitCode()
}

// stop shuts the process down.
func (p *process) stop() {
	p.t.Helper()
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if code := p.wait(20 * time.Second); code != 0 {
		p.t.Errorf("exit status %d:\n%s", code, p.log())
	}
}

// kubeconfig returns the file of the administrator's kubeconfig.
func (p *process) kubeconfig() string { return filepath.Join(p.dir, "admin.kubeconfig") }

func (p *process) config(kubeconfig string) *rest.Config {
	p.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		p.t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// ready waits until readyz is green and returns a client.
func (p *process) ready(kubeconfig string) *kubernetes.Clientset {
	p.t.Helper()
	p.await("kubeconfig", func() bool {
		text, err := os.ReadFile(kubeconfig)
		return err == nil && strings.Contains(string(text), fmt.Sprintf("https://127.0.0.1:%d\n", p.port))
	})
	client, err := kubernetes.NewForConfig(p.config(kubeconfig))
	if err != nil {
		p.t.Fatal(err)
	}
	p.await("readyz", func() bool {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(p.t.Context()).Error() == nil
	})
	return client
}

func (p *process) await(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-p.done:
			p.t.Fatalf("%s: ended with status %d:\n%s", what, p.command.ProcessState.ExitCode(), p.log())
		case <-deadline.C:
			p.t.Fatalf("%s: timed out:\n%s", what, p.log())
		}
	}
}

// TestRestartKeepsData, leaves nothing running, and needs nothing by hand.
func TestRestartKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first := launch(t, dir, "--controllers=all-generic")
	client := first.ready(first.kubeconfig())
	ctx := t.Context()
	if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first.checkFiles()
	first.checkSocket()
	first.checkControllers(client)
	ended := first.watch(client)
	begin := time.Now()
	first.stop()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v to end with an open watch", took)
	}
	<-ended
	if left, err := os.ReadDir(first.tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind in the temporary directory: %v, %v", left, err)
	}

	second := launch(t, dir)
	client = second.ready(second.kubeconfig())
	kept, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || kept.Data["a"] != "b" {
		t.Errorf("after a restart: %v, %v", kept, err)
	}
	second.stop()
}

// checkFiles checks that only the owner can read secret files.
func (p *process) checkFiles() {
	p.t.Helper()
	info, err := os.Stat(p.kubeconfig())
	if err != nil || info.Mode().Perm() != 0o600 {
		p.t.Errorf("admin.kubeconfig: %v, %v", info.Mode(), err)
	}
	if got, want := p.config(p.kubeconfig()).Host, fmt.Sprintf("https://127.0.0.1:%d", p.port); got != want {
		p.t.Errorf("the kubeconfig is for %s, want %s", got, want)
	}
	if info, err := os.Stat(p.dir); err != nil || info.Mode().Perm() != 0o700 {
		p.t.Errorf("data directory: %v, %v", info.Mode(), err)
	}
	err = filepath.WalkDir(filepath.Join(p.dir, "pki"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".key") {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			p.t.Errorf("%s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
}

// checkSocket checks that etcd listens only in a directory of its owner, and on no port.
func (p *process) checkSocket() {
	p.t.Helper()
	entries, err := os.ReadDir(p.tmp)
	if err != nil || len(entries) != 1 {
		p.t.Fatalf("in the temporary directory: %v, %v", entries, err)
	}
	info, err := entries[0].Info()
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		p.t.Errorf("socket directory: %v, %v", info.Mode(), err)
	}
	sockets, err := os.ReadDir(filepath.Join(p.tmp, entries[0].Name()))
	if err != nil || len(sockets) != 1 || sockets[0].Type() != fs.ModeSocket {
		p.t.Errorf("in the socket directory: %v, %v", sockets, err)
	}
}

// checkControllers checks the work of the controllers in the process.
func (p *process) checkControllers(client *kubernetes.Clientset) {
	p.t.Helper()
	ctx := p.t.Context()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "passing"}}, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.await("default ServiceAccount and root CA", func() bool {
		_, account := client.CoreV1().ServiceAccounts("passing").Get(ctx, "default", metav1.GetOptions{})
		ca, err := client.CoreV1().ConfigMaps("passing").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return account == nil && err == nil && strings.Contains(ca.Data["ca.crt"], "BEGIN CERTIFICATE")
	})
	if err := client.CoreV1().Namespaces().Delete(ctx, "passing", metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.await("namespace is gone", func() bool {
		_, err := client.CoreV1().Namespaces().Get(ctx, "passing", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// watch opens watches of each tier. The returned channel is closed when the server has ended
// all of them.
func (p *process) watch(client *kubernetes.Clientset) <-chan struct{} {
	p.t.Helper()
	var group sync.WaitGroup
	for _, path := range []string{
		"/api/v1/namespaces/default/configmaps",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/apis/apiregistration.k8s.io/v1/apiservices",
	} {
		stream, err := client.Discovery().RESTClient().Get().AbsPath(path).Param("watch", "true").Stream(context.Background())
		if err != nil {
			p.t.Fatal(err)
		}
		group.Go(func() {
			defer stream.Close()
			for lines := bufio.NewReader(stream); ; {
				if _, err := lines.ReadString('\n'); err != nil {
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	return ended
}

// TestSecondStartOnTheSameData checks that a second process fails at once, with the reason.
func TestSecondStartOnTheSameData(t *testing.T) {
	dir := t.TempDir()
	first := launch(t, dir)
	client := first.ready(first.kubeconfig())
	second := launch(t, dir)
	if code := second.wait(30 * time.Second); code != 1 {
		t.Errorf("exit status %d", code)
	}
	lines := strings.Split(strings.TrimSpace(second.log()), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "error: ") })
	if len(lines) != 1 || !strings.Contains(lines[0], "--data-dir="+dir) || !strings.Contains(lines[0], "in use") {
		t.Errorf("it says:\n%s", second.log())
	}
	if got, want := first.config(first.kubeconfig()).Host, fmt.Sprintf("https://127.0.0.1:%d", first.port); got != want {
		t.Errorf("the kubeconfig of the first is now for %s", got)
	}
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error(); err != nil {
		t.Errorf("the first one: %v", err)
	}
	first.stop()
}

// TestAddressInUse checks that the error names the flags, and that no files remain.
func TestAddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	occupied := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	for _, test := range []struct{ flag, want string }{
		{"--secure-port=" + occupied, "error: --bind-address=127.0.0.1 --secure-port=" + occupied + ": "},
		{"--bind-address=192.0.2.77", "error: --bind-address=192.0.2.77 --secure-port="}, // RFC 5737
	} {
		p := launch(t, t.TempDir(), test.flag)
		if code := p.wait(time.Minute); code != 1 {
			t.Errorf("%s: exit status %d", test.flag, code)
		}
		if !strings.Contains(p.log(), test.want) {
			t.Errorf("%s: it says:\n%s", test.flag, p.log())
		}
		if left, err := os.ReadDir(p.tmp); err != nil || len(left) != 0 {
			t.Errorf("%s: left behind in the temporary directory: %v, %v", test.flag, left, err)
		}
	}
}
