// Command pins checks that all go.mod files of the workspace agree on their versions, and
// with -write makes them agree. See package triune.dev/tests/pins.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"triune.dev/tests/pins"
	"triune.dev/tests/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "pins:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("pins", flag.ContinueOnError)
	flags.SetOutput(stderr)
	write := flags.Bool("write", false, "edit the go.mod files instead of reporting what is wrong with them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := tools.Root()
	if err != nil {
		return err
	}
	workspace, err := pins.Load(ctx, root)
	if err != nil {
		return err
	}
	if *write {
		return workspace.Write(ctx)
	}
	if problems := workspace.Problems(); len(problems) > 0 {
		return fmt.Errorf("%d problems; `make pins` repairs what can be repaired:\n%s", len(problems), strings.Join(problems, "\n"))
	}
	return nil
}
