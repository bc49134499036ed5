package l4proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// echo starts a server that answers each line with its name and the line, and says bye at the
// end of the input.
func echo(t *testing.T, name string) string {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					fmt.Fprintf(conn, "%s %s\n", name, lines.Text())
				}
				fmt.Fprintln(conn, "bye")
			}()
		}
	}()
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// run starts a forwarder. It returns the address and a function that stops it.
func run(t *testing.T, backends ...string) (string, func() error) {
	t.Helper()
	f := &Forwarder{Listener: listen(t), Backends: backends}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(cancel)
	return f.Listener.Addr().String(), func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			return fmt.Errorf("it does not end")
		}
	}
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	fmt.Fprintln(conn, "hello")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func TestConnectionsTakeTurns(t *testing.T) {
	gone := listen(t)
	gone.Close()
	front, _ := run(t, echo(t, "a"), gone.Addr().String(), echo(t, "b"))
	var got []string
	for range 6 {
		got = append(got, ask(t, dial(t, front)))
	}
	for _, want := range []string{"a hello\n", "b hello\n"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

func TestHalfClosedStaysHalfClosed(t *testing.T) {
	front, _ := run(t, echo(t, "a"))
	conn := dial(t, front)
	fmt.Fprintln(conn, "hello")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "a hello\nbye\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNoBackendClosesTheConnection(t *testing.T) {
	front, _ := run(t, "no-such-host.invalid:1")
	if _, err := io.ReadAll(dial(t, front)); err != nil {
		t.Errorf("got %v, want the end of the connection", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	front, stop := run(t, echo(t, "a"))
	conn := dial(t, front)
	ask(t, conn)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
	if _, err := net.Dial("tcp", front); err == nil {
		t.Error("it still listens")
	}
}

func TestRunReportsABrokenListener(t *testing.T) {
	f := &Forwarder{Listener: listen(t)}
	f.Listener.Close()
	if err := f.Run(t.Context()); err == nil {
		t.Error("no error")
	}
}
