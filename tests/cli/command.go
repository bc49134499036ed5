// Package cli runs client programs in tests: kubectl, helm, and programs that start clusters.
//
// A [Command] is a program with its environment. Of, Stdin and With return changed copies.
// Try, Run, Says, Fails and Eventually run the program to its end; each fails the test if the
// program cannot be started or does not end in time. A Command may be used concurrently, as
// far as the test may.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/tools"
)

// Command is a client program with its environment.
type Command struct {
	T    *testing.T
	Path string
	Args []string // precede the arguments of each call
	Env  []string // in addition to that of the test
	In   string   // standard input
	// Limit bounds each call; 0 stands for three minutes.
	Limit time.Duration
}

// Output is the result of one call.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// Kubectl returns kubectl for a kubeconfig and a namespace; "" leaves the namespace to
// kubectl. Its home and cache belong to the test.
func Kubectl(t *testing.T, kubeconfig, namespace string) Command {
	t.Helper()
	path, err := tools.Path(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	k := Command{T: t, Path: path, Env: []string{"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()}}
	if namespace != "" {
		k.Args = []string{"--namespace=" + namespace}
	}
	return k
}

// Of returns the command of another test, such as a subtest.
func (c Command) Of(t *testing.T) Command { c.T = t; return c }

// Stdin returns the command with a standard input.
func (c Command) Stdin(in string) Command { c.In = in; return c }

// With returns the command with more environment variables.
func (c Command) With(env ...string) Command {
	c.Env = append(append([]string{}, c.Env...), env...)
	return c
}

// Try runs the program and returns its result.
func (c Command) Try(args ...string) Output {
	c.T.Helper()
	// Do not cancel it at the end of the test: it may be a cleanup.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.T.Context()), cmp.Or(c.Limit, 3*time.Minute))
	defer cancel()
	cmd := c.Cmd(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := Output{Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		c.T.Fatalf("%s: %v\n%s%s", c.line(args), ctx.Err(), o.Stdout, o.Stderr)
	case errors.As(err, &exit):
		o.Code = exit.ExitCode()
	default:
		c.T.Fatal(err)
	}
	return o
}

// line returns the command line of a call, for messages.
func (c Command) line(args []string) string {
	return filepath.Base(c.Path) + " " + strings.Join(args, " ")
}

// Cmd returns a call that the caller runs.
func (c Command) Cmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Path, append(append([]string{}, c.Args...), args...)...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdin = strings.NewReader(c.In)
	return cmd
}

// Run returns standard output and fails the test unless the program succeeds.
func (c Command) Run(args ...string) string {
	c.T.Helper()
	o := c.Try(args...)
	if o.Code != 0 {
		c.T.Fatalf("%s: exit status %d\n%s%s", c.line(args), o.Code, o.Stdout, o.Stderr)
	}
	return o.Stdout
}

// Says fails the test unless the program succeeds and prints all fragments.
func (c Command) Says(want []string, args ...string) {
	c.T.Helper()
	ExpectFragments(c.T, strings.Join(args, " "), c.Run(args...), want)
}

// Fails returns standard error and fails the test if the program succeeds.
func (c Command) Fails(want string, args ...string) string {
	c.T.Helper()
	o := c.Try(args...)
	if o.Code == 0 {
		c.T.Fatalf("%s: succeeded\n%s", c.line(args), o.Stdout)
	}
	if !strings.Contains(o.Stderr, want) {
		c.T.Fatalf("%s: got %q, want %q in it", c.line(args), o.Stderr, want)
	}
	return o.Stderr
}

// Eventually repeats the call until the program succeeds and prints the text.
func (c Command) Eventually(limit time.Duration, text string, args ...string) {
	c.T.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(250 * time.Millisecond) {
		o := c.Try(args...)
		if o.Code == 0 && strings.Contains(o.Stdout, text) {
			return
		}
		if time.Now().After(deadline) {
			c.T.Fatalf("%s: %q is not printed within %v\n%s%s", c.line(args), text, limit, o.Stdout, o.Stderr)
		}
	}
}

// ExpectFragments reports an error unless text has all fragments.
func ExpectFragments(t *testing.T, what, text string, want []string) {
	t.Helper()
	var missing []string
	for _, w := range want {
		if !strings.Contains(text, w) {
			missing = append(missing, fmt.Sprintf("%q", w))
		}
	}
	if len(missing) > 0 {
		t.Errorf("%s: missing %s in\n%s", what, strings.Join(missing, ", "), text)
	}
}
