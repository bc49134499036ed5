// Command run-node runs a whole cluster on this machine, to try it by hand: triune,
// kube-controller-manager, kube-scheduler, and a node with kubelet, containerd and kube-proxy.
// It is make run-node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/node"
	"triune.dev/tests/tools"
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
	flags := flag.NewFlagSet("run-node", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", filepath.Join(".run", "admin.kubeconfig"), "file that gets the administrator's kubeconfig")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if lacks := node.Missing(); lacks != "" {
		return errors.New(lacks)
	}
	path, err := filepath.Abs(*kubeconfig)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "triune-run-node-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	keys, err := pki.Ensure(dir, node.PKIOptions())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "starting the control plane")
	c, err := cluster.Start(ctx, node.ClusterConfig(cluster.Triune, 1, keys))
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.Dir)
	n, err := join(ctx, c, path, out)
	if err == nil {
		fmt.Fprintf(out, "\nready; what a Pod can run is in the image %s; for kubectl:\n\nexport KUBECONFIG=%s\n\n", node.ToolsImage, path)
		<-ctx.Done()
	}
	if n != nil {
		err = errors.Join(err, n.Close())
	}
	return errors.Join(err, c.Close())
}

// join starts the controllers and a node, and waits until the node is ready. The caller closes
// the node, also after an error if it is not nil.
func join(ctx context.Context, c *cluster.Cluster, kubeconfig string, out io.Writer) (*node.Node, error) {
	if err := c.WriteKubeconfig(kubeconfig, c.PKI.Admin); err != nil {
		return nil, err
	}
	if err := node.StartControllers(ctx, c); err != nil {
		return nil, err
	}
	kubectl, err := tools.Path(ctx, "kubectl")
	if err != nil {
		return nil, err
	}
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig="+kubeconfig, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(cluster.BootstrapManifest)
	if printed, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("kubectl apply: %w: %s", err, printed)
	}
	fmt.Fprintln(out, "starting the node")
	n, err := node.Start(ctx, c, cluster.BootstrapToken)
	if err != nil {
		return n, err
	}
	fmt.Fprintf(out, "waiting until %s is ready\n", n.Name)
	return n, n.AwaitReady(ctx)
}
