// Tools builds the named test tools, or all that the test suite needs, and prints the path of
// each. What it has to build, it says on standard error. See package triune.dev/tests/tools.
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
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, stdout, progress io.Writer) error {
	if len(names) == 0 {
		for _, t := range tools.All() {
			names = append(names, t.Name)
		}
	}
	for i, name := range names {
		path, err := tools.Build(ctx, name, func(version string) {
			fmt.Fprintf(progress, "building %s %s (%d of %d)\n", name, version, i+1, len(names))
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, path)
	}
	return nil
}
