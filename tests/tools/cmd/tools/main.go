// Tools builds the named test tools, or all that the test suite needs, and
// prints the path of each. See package triune.dev/tests/tools.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"triune.dev/tests/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, stdout io.Writer) error {
	if len(names) == 0 {
		for _, t := range tools.All() {
			names = append(names, t.Name)
		}
	}
	for _, name := range names {
		path, err := tools.Path(ctx, name)
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, path)
	}
	return nil
}
