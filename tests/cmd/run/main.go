// Command run starts a server, writes its log to a file, and prints what a user needs: how
// to reach the server once it is ready, or why it has exited. It is make run.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"triune.dev/shared/process/healthcheck"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	log := flags.String("log", "", "file that gets what the server logs")
	kubeconfig := flags.String("kubeconfig", "", "the administrator's kubeconfig, which the server writes")
	var ready healthcheck.Check
	flags.StringVar(&ready.URL, "url", "", "URL that answers 200 when the server is ready")
	flags.StringVar(&ready.CAFile, "ca-file", "", "CA of the server's certificate")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server, err := start(flags.Args(), *log)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "starting; the server logs to %s\n", *log)
	go func() {
		if server.until(ready) {
			fmt.Fprintf(out, "\nready; for kubectl:\n\nexport KUBECONFIG=%s\n\n", *kubeconfig)
		}
	}()
	return server.wait()
}

// server is a started process.
type server struct {
	log   string
	ended chan struct{} // closed when the process has exited; err is set before
	err   error
}

// start runs a program until it exits or is signalled. Ctrl-C reaches it directly, because
// it is in our process group; SIGTERM is passed on.
func start(command []string, log string) (*server, error) {
	if len(command) == 0 {
		return nil, errors.New("which program to run is missing")
	}
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the process has its own copy
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	process := exec.Command(command[0], command[1:]...)
	process.Stdout, process.Stderr = file, file
	if err := process.Start(); err != nil {
		return nil, err
	}
	s := &server{log: log, ended: make(chan struct{})}
	go func() {
		s.err = process.Wait()
		close(s.ended)
	}()
	go func() {
		for {
			select {
			case received := <-signals:
				if received == syscall.SIGTERM {
					_ = process.Process.Signal(received) // it may have exited meanwhile
				}
			case <-s.ended:
				return
			}
		}
	}()
	return s, nil
}

// until waits until the server is ready, and returns false if it has exited before.
func (s *server) until(ready healthcheck.Check) bool {
	ready.Timeout = time.Second
	for ready.Run(context.Background()) != nil {
		select {
		case <-s.ended:
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
	return true
}

// wait waits for the server to exit, and returns its error.
func (s *server) wait() error {
	<-s.ended
	if s.err == nil {
		return nil
	}
	logged, err := os.ReadFile(s.log)
	if err != nil {
		return errors.Join(s.err, err)
	}
	lines := bytes.Split(bytes.TrimSpace(logged), []byte("\n"))
	if message, ok := bytes.CutPrefix(lines[len(lines)-1], []byte("error: ")); ok {
		return errors.New(string(message))
	}
	return fmt.Errorf("%w; its last words are in %s", s.err, s.log)
}
