package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// program stands for a server.
type program struct {
	server *genericoptions.ServerRunOptions
	logs   *logs.Options
	port   int
	names  []string
	run    func(context.Context) error
}

func newProgram() *program {
	return &program{
		server: genericoptions.NewServerRunOptions(), logs: logs.NewOptions(), port: 6443,
		run: func(context.Context) error { return nil },
	}
}

func (p *program) AddFlags(sections *cliflag.NamedFlagSets) {
	p.server.AddUniversalFlags(sections.FlagSet("generic"))
	logsapi.AddFlags(p.logs, sections.FlagSet("logs"))
	fs := sections.FlagSet("secure serving")
	fs.IntVar(&p.port, "secure-port", p.port, "The port.")
	fs.StringSliceVar(&p.names, "name", p.names, "The names.")
}

func (p *program) Complete(context.Context) error { return nil }

func (p *program) Validate() (problems []error) {
	if p.port < 1 {
		problems = append(problems, fmt.Errorf("--secure-port=%d must be positive", p.port))
	}
	for _, name := range p.names {
		problems = append(problems, fmt.Errorf("--name=%s is\nnot a name", name))
	}
	return problems
}

func (p *program) Run(ctx context.Context) error { return p.run(ctx) }

func (p *program) spec() Spec {
	return Spec{Use: "tier", Long: "A tier that serves nothing.", Program: p, Logs: p.logs}
}

// TestMain runs the test binary as the program, for tests that start it.
func TestMain(m *testing.M) {
	if os.Getenv("COMMAND_TEST_MAIN") == "" {
		os.Exit(m.Run())
	}
	p := newProgram()
	p.run = func(ctx context.Context) error {
		fmt.Println("serving")
		<-ctx.Done()
		fmt.Println("draining")
		if os.Getenv("COMMAND_TEST_MAIN") == "hang" {
			select {}
		}
		return nil
	}
	os.Exit(Main(p.spec()))
}

// start starts the test binary as the program.
func start(t *testing.T, mode string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), "COMMAND_TEST_MAIN="+mode)
	return cmd
}

// TestRunIgnoresArgumentsOfProcess checks that Run without arguments does not use those of
// the process.
func TestRunIgnoresArgumentsOfProcess(t *testing.T) {
	own := os.Args
	defer func() { os.Args = own }()
	os.Args = []string{own[0], "stray"}
	p := newProgram()
	p.port = 0
	err := Run(t.Context(), p.spec(), nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(Message(err), "--secure-port=0") {
		t.Errorf("got %v", err)
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []string
	}{
		"unknown flag":             {[]string{"--no-such-flag=1"}, []string{"--no-such-flag"}},
		"unknown shorthand":        {[]string{"-z"}, []string{"-z"}},
		"unusable value":           {[]string{"--secure-port=many"}, []string{"--secure-port", "many"}},
		"invalid value":            {[]string{"--secure-port=-1"}, []string{"--secure-port=-1"}},
		"several invalid values":   {[]string{"--secure-port=-1", "--name=a,b"}, []string{"--secure-port=-1", "--name=a is not a name", "--name=b"}},
		"unknown feature":          {[]string{"--feature-gates=NoSuchGate=true"}, []string{"--feature-gates", "NoSuchGate"}},
		"unknown emulated version": {[]string{"--emulated-version=one"}, []string{"--emulated-version", "one"}},
		"unknown log format":       {[]string{"--logging-format=xml"}, []string{"--logging-format=xml"}},
		"an argument":              {[]string{"serve"}, []string{"serve"}},
		"an empty argument":        {[]string{""}, []string{"takes no arguments"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := start(t, "serve", test.args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit status 1", err)
			}
			line, rest, _ := strings.Cut(stderr.String(), "\n")
			if rest != "" || !strings.HasPrefix(line, "error: ") || stdout.Len() > 0 {
				t.Errorf("want one line on stderr and nothing on stdout, got\n%s\nand\n%s", stderr.String(), stdout.String())
			}
			for _, want := range test.want {
				if !strings.Contains(line, want) {
					t.Errorf("%q does not contain %q", line, want)
				}
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p := newProgram()
	p.run = func(context.Context) error { return errors.New("ran") }
	if err := Run(t.Context(), p.spec(), []string{"--help"}, &stdout, &stderr); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"A tier that serves nothing.", "Generic flags:", "Logs flags:", "Secure serving flags:", "Global flags:",
		"--secure-port", "--feature-gates", "--emulated-version", "--logging-format", "--version", "-v, --v"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the help has no %q:\n%s", want, stdout.String())
		}
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", stderr.String())
	}
}

func TestVersion(t *testing.T) {
	cmd := start(t, "serve", "--version")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(out), "Kubernetes v1.36.3\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFlagValueForms checks the ways in which tools write flags: with a space, with an
// equals sign, with underscores, and repeated.
func TestFlagValueForms(t *testing.T) {
	// Logging can be configured once in a process; the test may run twice.
	if err := logsapi.ResetForTest(nil); err != nil {
		t.Fatal(err)
	}
	p := newProgram()
	var got string
	p.run = func(context.Context) error {
		got = fmt.Sprint(p.port, p.server.RequestTimeout)
		return nil
	}
	if err := Run(t.Context(), p.spec(), []string{"--secure-port", "1", "--secure-port=7443", "--request_timeout=5s"}, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if want := "7443 5s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSignals(t *testing.T) {
	tests := map[string]struct {
		mode    string
		signals []os.Signal
		want    func(*os.ProcessState) bool
	}{
		"SIGTERM shuts down":   {"serve", []os.Signal{syscall.SIGTERM}, func(s *os.ProcessState) bool { return s.ExitCode() == 0 }},
		"interrupt shuts down": {"serve", []os.Signal{os.Interrupt}, func(s *os.ProcessState) bool { return s.ExitCode() == 0 }},
		"second signal exits":  {"hang", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, func(s *os.ProcessState) bool { return s.ExitCode() == 1 }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := start(t, test.mode)
			lines := make(chan string, 10)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(lines)
				buffer := make([]byte, 4096)
				for {
					n, err := out.Read(buffer)
					for line := range strings.Lines(string(buffer[:n])) {
						lines <- strings.TrimSpace(line)
					}
					if err != nil {
						return
					}
				}
			}()
			// Each signal is sent after the program has handled the previous one.
			for i, want := range []string{"serving", "draining"}[:len(test.signals)] {
				if got := next(t, lines); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				if err := cmd.Process.Signal(test.signals[i]); err != nil {
					t.Fatal(err)
				}
			}
			for range lines {
			}
			_ = cmd.Wait()
			if !test.want(cmd.ProcessState) {
				t.Errorf("ended with %s", cmd.ProcessState)
			}
		})
	}
}

func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case line := <-lines:
		return line
	case <-time.After(30 * time.Second):
		t.Fatal("the program prints nothing")
		return ""
	}
}

func TestMessage(t *testing.T) {
	tests := map[string]struct {
		err  error
		want string
	}{
		"one":       {errors.New("a\n\tb"), "a b"},
		"aggregate": {utilerrors.NewAggregate([]error{errors.New("a"), utilerrors.NewAggregate([]error{errors.New("b"), errors.New("c")})}), "a; b; c"},
		"wrapped":   {fmt.Errorf("start: %w", errors.New("b")), "start: b"},
		"joined":    {errors.Join(errors.New("a"), errors.New("b")), "a; b"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Message(test.err); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
