// Command run-tiers runs etcd, NATS and the three services of Triune as processes of this
// machine, to try the three tiers by hand: make run-tiers.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"triune.dev/tests/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("run-tiers", flag.ContinueOnError)
	replicas := flags.Int("replicas", 1, "processes of each tier")
	kubeconfig := flags.String("kubeconfig", filepath.Join(".run", "admin.kubeconfig"), "file that gets the administrator's kubeconfig")
	if err := flags.Parse(args); err != nil {
		return err
	}
	path, err := filepath.Abs(*kubeconfig)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Config{Topology: cluster.Tiers, Replicas: *replicas})
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.Dir)
	if err := c.WriteKubeconfig(path, c.PKI.Admin); err != nil {
		return fmt.Errorf("%w (and stopping: %v)", err, c.Close())
	}
	for _, tier := range []cluster.Tier{cluster.Aggregator, cluster.Core, cluster.Extensions} {
		for i := range *replicas {
			fmt.Fprintf(out, "%-11s %s\n", tier, c.ReplicaURL(tier, i))
		}
	}
	fmt.Fprintf(out, "export KUBECONFIG=%s\n", path)
	<-ctx.Done()
	return c.Close()
}
