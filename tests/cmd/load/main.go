// Command load keeps a server busy, so that the dashboards have something to show:
// make load.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/tests/deploy/traffic"
)

// cleaning bounds the time of the clean-up.
const cleaning = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "file that says which server; the default is $KUBECONFIG")
	length := flags.Duration("for", 2*time.Minute, "how long; 0 is until it is interrupted")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *kubeconfig == "" {
		return errors.New("-kubeconfig is needed, or KUBECONFIG in the environment: export KUBECONFIG=deploy/compose/admin.kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("-kubeconfig=%s: %w", *kubeconfig, err)
	}
	g, err := traffic.New(config)
	if err != nil {
		return err
	}
	sending := ctx
	if *length > 0 {
		var cancel context.CancelFunc
		sending, cancel = context.WithTimeout(ctx, *length)
		defer cancel()
	}
	fmt.Fprintf(out, "traffic to %s\n", config.Host)
	if err := g.Run(sending); err != nil {
		return err
	}
	fmt.Fprintln(out, g)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	return g.Clean(last)
}
