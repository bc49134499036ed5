package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"triune.dev/tests/cli"
)

// openTerminal returns both ends of a new terminal.
func openTerminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// resize runs a command in a terminal, whose size it has, and then has another.
func resize(t *testing.T, k cli.Command, pod string) {
	ours, theirs, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	size := func(rows, columns uint16) {
		if err := unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
			t.Fatal(err)
		}
	}
	size(24, 80)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := k.Cmd(ctx, "exec", "-it", pod, "--", "sh", "-c", "while sleep 0.1; do stty size; done")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	defer func() { cancel(); _ = cmd.Wait() }()
	var printed bytes.Buffer
	wait := func(text string) {
		buffer := make([]byte, 4<<10)
		for !strings.Contains(printed.String(), text) {
			n, err := ours.Read(buffer)
			printed.Write(buffer[:n])
			if err != nil {
				t.Fatalf("%v before the size is %s: %q", err, text, printed.String())
			}
		}
	}
	wait("24 80")
	size(40, 120)
	wait("40 120")
	// ^C ends the command, and kubectl with it.
	if _, err := ours.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "exit status 130") {
		t.Errorf("kubectl ends with %v, want exit status 130", err)
	}
}
